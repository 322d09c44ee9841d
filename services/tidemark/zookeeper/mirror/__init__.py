# SPDX-License-Identifier: Apache-2.0
"""A copy of ZooKeeper's description of the cluster, kept by watches."""

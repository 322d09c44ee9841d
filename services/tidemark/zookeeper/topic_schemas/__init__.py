# SPDX-License-Identifier: Apache-2.0
"""The versions of topics' schemas in ZooKeeper."""

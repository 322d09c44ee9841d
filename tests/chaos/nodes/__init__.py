# SPDX-License-Identifier: Apache-2.0
"""A cluster over three "nodes" that are network namespaces of this machine, so that a whole node can be cut off."""

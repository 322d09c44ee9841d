# SPDX-License-Identifier: Apache-2.0
"""Nodes that hold all facts of a kind: read, watched and replaced as a whole, and the last known ones hold."""

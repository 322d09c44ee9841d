# SPDX-License-Identifier: Apache-2.0
"""Nodes that hold all facts of a kind: read, watched and replaced as a whole; the last known facts stay in effect."""

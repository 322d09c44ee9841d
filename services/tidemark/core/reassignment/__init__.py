# SPDX-License-Identifier: Apache-2.0
"""Reassignments as values: request, checks, status, progress, and the topic's node. Pure."""

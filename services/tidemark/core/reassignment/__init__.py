# SPDX-License-Identifier: Apache-2.0
"""Reassignments as values: a request, its checks, its status and its progress. Pure."""

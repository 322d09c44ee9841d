# SPDX-License-Identifier: Apache-2.0
"""Segment files, their indexes, and finding batches in them."""

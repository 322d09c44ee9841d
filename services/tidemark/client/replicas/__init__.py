# SPDX-License-Identifier: Apache-2.0
"""Reads of single replicas, compared and verified."""

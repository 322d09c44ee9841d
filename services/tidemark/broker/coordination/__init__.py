# SPDX-License-Identifier: Apache-2.0
"""Shared by the coordinators of groups and of transactions: an internal topic, its records, its leadership."""

# SPDX-License-Identifier: Apache-2.0
"""Quotas of clients in calls: client ids in headers, quotas in messages, and waits that slow callers down."""

# SPDX-License-Identifier: Apache-2.0
"""Transactions: calls to their coordinator, and the transactions of a producer (docs/protocol.md, rules X1-X17)."""

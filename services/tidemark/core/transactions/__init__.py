# SPDX-License-Identifier: Apache-2.0
"""Transactions: the coordinator of transactional ids (docs/protocol.md, rules X10-X16)."""

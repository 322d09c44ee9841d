# SPDX-License-Identifier: Apache-2.0
"""Quotas of clients, as Kafka has them: which quota applies, and the wait of a client that is over it."""

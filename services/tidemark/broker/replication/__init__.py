# SPDX-License-Identifier: Apache-2.0
"""Replication between brokers: control RPCs, replica streams, follower reads, ISR changes."""

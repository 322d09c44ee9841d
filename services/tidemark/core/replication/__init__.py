# SPDX-License-Identifier: Apache-2.0
"""Replication as a state machine: one broker's replicas, leaders, followers and replica streams. Pure."""

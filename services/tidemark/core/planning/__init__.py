# SPDX-License-Identifier: Apache-2.0
"""Replica placement and plans that balance brokers. Pure."""

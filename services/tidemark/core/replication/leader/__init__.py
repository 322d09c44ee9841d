# SPDX-License-Identifier: Apache-2.0
"""The leader's side of replication: append, send, commit and keep the ISR."""

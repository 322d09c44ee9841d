# SPDX-License-Identifier: Apache-2.0
"""Exactly-once writes: the driver commits the writes of its tasks by reference (rule X16)."""

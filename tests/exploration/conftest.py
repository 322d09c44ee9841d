# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests of the explorer."""

from __future__ import annotations

from tests.exploration.known import known

__all__ = ["known"]

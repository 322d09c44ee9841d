# SPDX-License-Identifier: Apache-2.0
"""Contexts of gRPC calls."""

from __future__ import annotations


class PlainContext:
    """The context of a call on a plain-text port."""

    def auth_context(self) -> dict[str, list[bytes]]:
        """An empty context: the caller has no certificate."""
        return {}

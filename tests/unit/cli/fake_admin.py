# SPDX-License-Identifier: Apache-2.0
"""The base of admin clients that answer commands from memory."""

from __future__ import annotations

from typing import Self


class FakeAdmin:
    """An admin client without connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

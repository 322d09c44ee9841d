# SPDX-License-Identifier: Apache-2.0
"""What every sync client is beside its calls: a context manager that closes it."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from tidemark.client.sync.event_loop_thread import BackgroundLoop

__all__ = ["START_S", "Facade"]

START_S: Final = 30.0
"""Within this the async client behind it has started."""


class Facade:
    """Base of the sync clients; each closes the async client behind it."""

    _closed = False
    _background: BackgroundLoop

    def _ends_now(self) -> bool:
        """Whether this is the one call that closes it, in the process that made it."""
        ends = not self._closed and not self._background.forked
        self._closed = True
        return ends

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        raise AssertionError("each facade closes its own client")

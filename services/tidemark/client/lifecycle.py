# SPDX-License-Identifier: Apache-2.0
"""`async with` for clients: starts on entry, closes on exit and after a failed start."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

INTERRUPTIONS: Final = (KeyboardInterrupt, asyncio.CancelledError)
INTERRUPTED_S: Final = 1.0
"""Time that a producer sends buffered records after its `with` was interrupted."""
TURN_S: Final = 0.01
"""Time after which a call that does not have to wait lets other tasks of the event loop run, such as heartbeats."""


@contextmanager
def interruptible() -> Iterator[None]:
    """For a wait on a future or an event: raises an interrupt that came as the wait took its lock.

    Python hides this interrupt: the lock is released without being held, which is a RuntimeError.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


class Lifecycle(ABC):
    """A client that is started once and closed once."""

    @abstractmethod
    async def start(self) -> None:
        """Open the connections of the client; `close` is needed even if this fails. A second start has no effect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the client, even after a failed or incomplete start."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

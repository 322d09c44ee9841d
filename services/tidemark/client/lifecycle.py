# SPDX-License-Identifier: Apache-2.0
"""`async with` a client: started on the way in, closed on the way out, and when the start fails."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

INTERRUPTIONS: Final = (KeyboardInterrupt, asyncio.CancelledError)
INTERRUPTED_S: Final = 1.0
"""So long a producer whose `with` was interrupted goes on sending what is left."""


class Lifecycle(ABC):
    """What is started once and closed once."""

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def close(self) -> None:
        """End; also of what has only half begun."""

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

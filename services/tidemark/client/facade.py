"""What every sync client is beside its calls: a context manager that closes it."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

__all__ = ["START_S", "Facade"]

START_S: Final = 30.0
"""Within this the async client behind it has started."""


class Facade:
    """Base of the sync clients; each closes the async client behind it."""

    _closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        raise AssertionError("each facade closes its own client")

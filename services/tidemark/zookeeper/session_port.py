# SPDX-License-Identifier: Apache-2.0
"""The interface of a ZooKeeper session; `session.ZooKeeperSession` implements it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from kazoo.protocol.states import ZnodeStat

from tidemark.ports import StoreEvent

T = TypeVar("T")

NodeRead = tuple[bytes, ZnodeStat]
"""Data and stat of a znode."""

Watch = Callable[[Any], None]


class Session(Protocol):
    """Every call raises TidemarkError(COORDINATION_UNAVAILABLE) when its time is out; metadata sent="false" means
    that ZooKeeper certainly did not carry the request out."""

    @property
    def session_id(self) -> int:
        """Id as in `ephemeralOwner` of the session's znodes; 0 without a session."""

    @property
    def call_timeout_ms(self) -> int:
        """Deadline of every request."""

    def lease_valid_until_ms(self) -> int:
        """End of the session lease by `now_ms` (rule F1); 0 with no session."""

    def lease_length_ms(self) -> int:
        """Negotiated timeout less the margin; 0 before the first session."""

    def now_ms(self) -> int:
        """Time of the port's clock, in milliseconds."""

    async def pause(self) -> None:
        """Wait before a retry."""

    async def give_way(self) -> None:
        """Yield to other tasks after some milliseconds of work."""

    async def gather(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Results in order; the first failure is raised when all have ended."""

    async def start(self) -> None:
        """Connect to ZooKeeper, in a new session."""

    async def stop(self) -> None:
        """Close the session; idempotent."""

    async def renew(self) -> None:
        """A new session in place of the old one."""

    async def read_many(self, paths: Sequence[str]) -> list[NodeRead | None]:
        """Data of many znodes, None for a missing znode; one small request reads all its znodes at the same time."""

    async def get(self, path: str, watch: Watch | None = None) -> NodeRead | None:
        """Data of one znode; None for a missing znode, on which no watch is set."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children; empty for a missing znode, whose creation fires the watch."""

    async def exists(self, path: str, watch: Watch | None = None) -> bool:
        """Whether the znode exists; the watch fires on its creation, too."""

    async def ensure_chroot(self) -> None:
        """Create the chroot path of the connect string."""

    async def ensure(self, path: str) -> None:
        """Create the znode and its parents where missing."""

    async def sync(self) -> None:
        """Later reads return no state older than this call."""

    async def deliver_events(self) -> None:
        """Sync; on return, every event of a recursive watch that preceded the sync has been delivered, and so has
        the notification of a lost connection.
        """

    async def watch_below(self, path: str, fire: Callable[[str], None]) -> None:
        """Call `fire` on the event loop, with the path, for each znode at or below `path` that is created, changed or
        deleted. The calls end with the connection."""

    async def commit(self, build: Callable[[Any], None]) -> list[Any]:
        """Commit one multi, built on a transaction like kazoo's: results in order, exceptions as values."""

    def watcher(self, event: StoreEvent) -> Watch:
        """A watch that delivers `event` on the event loop."""

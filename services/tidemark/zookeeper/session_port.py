# SPDX-License-Identifier: Apache-2.0
"""What the store's parts need of a ZooKeeper session; `session.ZooKeeperSession` is the real one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from kazoo.protocol.states import ZnodeStat

from tidemark.ports import StoreEvent

T = TypeVar("T")

NodeRead = tuple[bytes, ZnodeStat]
"""Data and stat of a node."""

Watch = Callable[[Any], None]


class Session(Protocol):
    """Every call raises TidemarkError(COORDINATION_UNAVAILABLE) when it is not answered in time; its metadata say
    sent="false" where the request was surely not carried out."""

    @property
    def session_id(self) -> int:
        """What `ephemeralOwner` of its nodes says; 0 when there is none."""

    @property
    def call_timeout_ms(self) -> int:
        """Deadline of every request."""

    def lease_valid_until_ms(self) -> int:
        """Rule F1; 0 with no session."""

    def lease_length_ms(self) -> int:
        """Negotiated timeout less the margin; 0 before the first session."""

    def now_ms(self) -> int:
        """The port's clock."""

    async def pause(self) -> None:
        """Let a little time pass before something is looked at again."""

    async def give_way(self) -> None:
        """Let others have a turn, as this has gone on for some milliseconds."""

    async def gather(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Results in order; the first failure is raised when all have ended."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Close the session; again is fine."""

    async def renew(self) -> None:
        """A new session in place of the old one."""

    async def read_many(self, paths: Sequence[str]) -> list[NodeRead | None]:
        """Data of many nodes, None where there is none; those of one small request are read at one moment."""

    async def get(self, path: str, watch: Watch | None = None) -> NodeRead | None:
        """Data of one node, None where there is none (a watch is set only where there is one)."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children; none where the node is missing."""

    async def exists(self, path: str, watch: Watch | None = None) -> bool:
        """Whether the node does; the watch fires on its creation too."""

    async def ensure_chroot(self) -> None:
        """Make the path at the end of the connect string."""

    async def ensure(self, path: str) -> None:
        """Make the node, and those above it, where missing."""

    async def sync(self) -> None:
        """What is read next is no older than now."""

    async def commit(self, build: Callable[[Any], None]) -> list[Any]:
        """One multi, built on a transaction as kazoo's: results in order, exceptions as values."""

    def watcher(self, event: StoreEvent) -> Watch:
        """A watch that tells of `event` on the event loop."""

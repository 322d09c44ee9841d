# SPDX-License-Identifier: Apache-2.0
"""Keeps a process's copy of a node up to date with ZooKeeper: of the access rules, and of the quotas.

The node is read at the start and watched. While ZooKeeper does not answer, or the node is damaged or deleted, the last
known content holds.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from tidemark.core.quotas.quotas import Quotas
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.model import TidemarkError
from tidemark.ports import Clock, StoreEvent
from tidemark.runtime.metrics import Metrics
from tidemark.runtime.scheduler import BackgroundTask
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_ENDED: Final = (StoreEvent.SESSION_SUSPENDED, StoreEvent.SESSION_EXPIRED)


class Reread(ABC):
    """Reads nodes at the start, and again after each `read_again`, until a read succeeds.

    Args:
        what: the content in a sentence, such as "access rules".
        fail: called with an unexpected error that ended the task.
    """

    def __init__(self, what: str, fail: Callable[[BaseException], None]) -> None:
        self._what = what
        self._wanted = asyncio.Event()
        self._keeper = BackgroundTask(fail)

    async def start(self) -> None:
        """Put the content into effect, if ZooKeeper answers, and watch the nodes."""
        if not await self._is_read():
            self._wanted.set()  # the session may have expired, and is renewed later
        self._keeper.start(self._keep(), self._what)

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        await self._keeper.stop()

    def read_again(self) -> None:
        """Read the nodes and set the watches again; a new session has no watches."""
        self._wanted.set()

    async def _keep(self) -> None:
        while True:
            await self._wanted.wait()
            if not await self._is_read():
                self._wanted.set()
                await asyncio.sleep(_RETRY_S)

    async def _is_read(self) -> bool:
        self._wanted.clear()
        return await self._read_once()

    @abstractmethod
    async def _read_once(self) -> bool:
        """Read the nodes and put them into effect; False if another read is needed soon."""


class Content(Protocol):
    """The content of a node, with its generation."""

    generation: int
    """Version of the node; -1: there is no node."""


ContentT = TypeVar("ContentT", bound=Content)


class NodeFeed(Reread, Generic[ContentT]):
    """Reads a node, watches it, and reads it again after a change.

    Args:
        what: the content in a sentence, such as "access rules".
        unread: the consequence while the node was never read, for the log.
        event: event of the watch.
        read: reads the node and arms its watch.
        use: called with each content.
        store: its session may be replaced; the node is then read again.
        fail: called with an unexpected error that ended the watch.
    """

    def __init__(
        self,
        what: str,
        unread: str,
        event: StoreEvent,
        *,
        read: Callable[[], Awaitable[ContentT]],
        use: Callable[[ContentT], None],
        store: MetadataStore,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(what, fail)
        self._unread = unread
        self._event = event
        self._read = read
        self._use = use
        self._clock = clock
        self._found: ContentT | None = None
        self._stale_since_ms: int | None = clock.now_ms()
        self._complaint = ""
        store.listen(self._on_event)

    @property
    def generation(self) -> int:
        """Version of the content in use; -1: there was no node, or the node was never read."""
        return -1 if self._found is None else self._found.generation

    def age_s(self) -> float:
        """Seconds since the content was last known to be the newest; 0 while a watch covers it."""
        since_ms = self._stale_since_ms
        return 0.0 if since_ms is None else max(0, self._clock.now_ms() - since_ms) / 1000

    def _on_event(self, event: StoreEvent) -> None:
        if event in _ENDED:
            self._age()
        if event in (self._event, StoreEvent.SESSION_RESTORED, StoreEvent.SESSION_EXPIRED):
            self.read_again()

    def _age(self) -> None:
        if self._stale_since_ms is None:
            self._stale_since_ms = self._clock.now_ms()

    async def _read_once(self) -> bool:
        """Read the node. A change of a damaged node fires the watch."""
        try:
            found = await self._read()
        except TidemarkError as error:
            self._age()
            self._complain(error.message)
            return not error.retriable
        before = self._found
        if before is not None and before.generation >= 0 > found.generation:
            self._age()
            self._complain("the node was deleted")
            return True
        self._complaint = ""
        if not self._wanted.is_set():
            self._stale_since_ms = None
        self._found = found
        self._use(found)
        return True

    def _complain(self, why: str) -> None:
        """Log each cause of a failed read once."""
        if why == self._complaint:
            return
        self._complaint = why
        if self._found is None:
            _log.error("no %s yet: %s", self._what, self._unread, extra={"why": why})
        else:
            facts = {"why": why, "generation": self._found.generation}
            _log.error("cannot read the %s: the last known ones hold", self._what, extra=facts)


class AclFeed(NodeFeed[Rules]):
    """Reads the rules, watches their node, and reads them again after a change.

    Args:
        authorizer: gets the rules; None: the rules are not enforced, and not read.
        store: its session may be replaced; the rules are then read again.
        changed: called after each change of the rules.
        fail: called with an unexpected error that ended the watch.
    """

    def __init__(
        self,
        authorizer: Authorizer | None,
        store: MetadataStore,
        clock: Clock,
        fail: Callable[[BaseException], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._authorizer = authorizer
        self._changed = changed
        super().__init__(
            "access rules",
            "only super users are allowed anything",
            StoreEvent.ACLS,
            read=lambda: store.acls(watch=True),
            use=self._put_into_effect,
            store=store,
            clock=clock,
            fail=fail,
        )

    async def start(self) -> None:
        """Put the rules into effect, if ZooKeeper answers, and watch them."""
        if self._authorizer is not None:
            await super().start()

    def show(self, metrics: Metrics) -> None:
        """Register the metrics of the rules."""
        count = metrics.gauge("acl_rules", "Access rules in effect; also 0 while authorization is off")
        generation = metrics.gauge("acl_rules_generation", "Version of the access rules in effect; -1: none")
        age = metrics.gauge(
            "acl_rules_age_seconds",
            "Time since the access rules in effect were last known to be the newest; 0: they are",
        )
        generation.set(-1)
        if self._authorizer is not None:
            authorizer = self._authorizer
            count.set_function(lambda: 0 if authorizer.rules is None else len(authorizer.rules.acls))
            generation.set_function(lambda: authorizer.generation)
            age.set_function(self.age_s)

    def _put_into_effect(self, rules: Rules) -> None:
        assert self._authorizer is not None, "without an authorizer the feed is not started"
        before = self._authorizer.rules
        if before is None or (before.generation, before.acls) != (rules.generation, rules.acls):
            self._authorizer.use(rules)
            _log.info("access rules in effect", extra={"rules": len(rules.acls), "generation": rules.generation})
            self._changed()


class QuotaFeed(NodeFeed[Quotas]):
    """Keeps the quotas of a process up to date; until the first read there are no quotas.

    Args:
        use: called with the quotas after each change.
        store: its session may be replaced; the quotas are then read again.
        fail: called with an unexpected error that ended the watch.
    """

    def __init__(
        self, use: Callable[[Quotas], None], store: MetadataStore, clock: Clock, fail: Callable[[BaseException], None]
    ) -> None:
        self._to = use
        self._quotas = Quotas()
        super().__init__(
            "quotas",
            "clients have none",
            StoreEvent.QUOTAS,
            read=lambda: store.quotas(watch=True),
            use=self._put_into_effect,
            store=store,
            clock=clock,
            fail=fail,
        )

    def show(self, metrics: Metrics) -> None:
        """Register the metrics of the quotas."""
        count = metrics.gauge("quota_entities", "Users, client ids and pairs of them with quotas in effect")
        count.set_function(lambda: len(self._quotas.limits))
        generation = metrics.gauge("quotas_generation", "Version of the quotas in effect; -1: none")
        generation.set_function(lambda: self.generation)
        age = metrics.gauge(
            "quotas_age_seconds", "Time since the quotas in effect were last known to be the newest; 0: they are"
        )
        age.set_function(self.age_s)

    def _put_into_effect(self, quotas: Quotas) -> None:
        if (quotas.generation, quotas.limits) != (self._quotas.generation, self._quotas.limits):
            self._quotas = quotas
            _log.info("quotas in effect", extra={"entities": len(quotas.limits), "generation": quotas.generation})
            self._to(quotas)

# SPDX-License-Identifier: Apache-2.0
"""Keeps the rules of an authorizer up to date with ZooKeeper.

The node is read at the start and watched. While ZooKeeper does not answer, or the node is damaged or deleted, the last
known rules hold. Without any the authorizer is not ready, and refuses all but super users.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.model import TidemarkError
from tidemark.ports import Clock, StoreEvent
from tidemark.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_ENDED: Final = (StoreEvent.SESSION_SUSPENDED, StoreEvent.SESSION_EXPIRED)


class RulesStore(Protocol):
    """The part of `MetadataStore` that has the rules."""

    def listen(self, listener: Callable[[StoreEvent], None]) -> None:
        """Call `listener` with every notification, on the event loop."""

    async def acls(self, *, watch: bool = False) -> Rules:
        """The rules."""


class AclFeed:
    """Reads, watches, and reads again.

    Args:
        authorizer: gets the rules; None: the rules are not enforced, and not read.
        store: its session may be replaced; the rules are then read again.
        changed: called after each change of the rules.
        fail: called with an unexpected error that ended the watch.
    """

    def __init__(
        self,
        authorizer: Authorizer | None,
        store: RulesStore,
        clock: Clock,
        fail: Callable[[BaseException], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._authorizer = authorizer
        self._store = store
        self._clock = clock
        self._fail = fail
        self._changed = changed
        self._wanted = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._stale_since_ms: int | None = clock.now_ms()
        self._complaint = ""
        store.listen(self._on_event)

    async def start(self) -> None:
        """Put the rules into effect, if ZooKeeper answers, and watch them."""
        if self._authorizer is None:
            return
        if not await self._is_read(self._authorizer):
            self._wanted.set()
        self._keeper = asyncio.create_task(self._keep(self._authorizer), name="access rules")
        self._keeper.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """Stop watching."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})

    def show(self, metrics: Metrics) -> None:
        """Register the metrics."""
        count = metrics.gauge("acl_rules", "Access rules in effect; 0 also while authorization is off")
        generation = metrics.gauge("acl_rules_generation", "Version of the access rules in effect; -1: none")
        age = metrics.gauge(
            "acl_rules_age_seconds",
            "Time since the access rules in effect were last known to be the newest; 0: they are",
        )
        if self._authorizer is not None:
            authorizer = self._authorizer
            count.set_function(lambda: 0 if authorizer.rules is None else len(authorizer.rules.acls))
            generation.set_function(lambda: authorizer.generation)
            age.set_function(self.age_s)

    def age_s(self) -> float:
        """Seconds since the rules were last known to be the newest; 0 while a watch covers them."""
        since_ms = self._stale_since_ms
        return 0.0 if since_ms is None else max(0, self._clock.now_ms() - since_ms) / 1000

    def _on_event(self, event: StoreEvent) -> None:
        if event in _ENDED:
            self._age()
        if event in (StoreEvent.ACLS, StoreEvent.SESSION_RESTORED, StoreEvent.SESSION_EXPIRED):
            self._wanted.set()

    def _age(self) -> None:
        if self._stale_since_ms is None:
            self._stale_since_ms = self._clock.now_ms()

    async def _keep(self, authorizer: Authorizer) -> None:
        while True:
            await self._wanted.wait()
            if not await self._is_read(authorizer):
                self._wanted.set()
                await asyncio.sleep(_RETRY_S)

    async def _is_read(self, authorizer: Authorizer) -> bool:
        """Read the rules once; False if they are to be read again soon. A change of a damaged node fires the watch."""
        self._wanted.clear()
        try:
            rules = await self._store.acls(watch=True)
        except TidemarkError as error:
            self._age()
            self._complain(error.message, authorizer)
            return not error.retriable
        before = authorizer.rules
        if before is not None and before.generation >= 0 > rules.generation:
            self._age()
            self._complain("the node with the rules was deleted", authorizer)
            return True
        self._complaint = ""
        if not self._wanted.is_set():
            self._stale_since_ms = None
        if before is None or (before.generation, before.acls) != (rules.generation, rules.acls):
            authorizer.use(rules)
            _log.info("access rules in effect", extra={"rules": len(rules.acls), "generation": rules.generation})
            self._changed()
        return True

    def _complain(self, why: str, authorizer: Authorizer) -> None:
        """Log each cause once."""
        if why == self._complaint:
            return
        self._complaint = why
        if authorizer.rules is None:
            _log.error("no access rules yet: only super users are allowed anything", extra={"why": why})
        else:
            facts = {"why": why, "generation": authorizer.generation}
            _log.error("cannot read the access rules: the last known ones hold", extra=facts)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

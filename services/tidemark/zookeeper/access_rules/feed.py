# SPDX-License-Identifier: Apache-2.0
"""Keeps the rules of an authorizer up to date with ZooKeeper; without rules the authorizer is not ready."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.ports import Clock, MetadataStore, StoreEvent
from tidemark.runtime.metrics import Metrics
from tidemark.zookeeper.whole_nodes.feed import NodeFeed

_log = logging.getLogger(__name__)


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

    def _put_into_effect(self, rules: Rules) -> None:
        assert self._authorizer is not None, "without an authorizer the feed is not started"
        before = self._authorizer.rules
        if before is None or (before.generation, before.acls) != (rules.generation, rules.acls):
            self._authorizer.use(rules)
            _log.info("access rules in effect", extra={"rules": len(rules.acls), "generation": rules.generation})
            self._changed()

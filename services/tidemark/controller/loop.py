# SPDX-License-Identifier: Apache-2.0
"""States of a controller process: standby, election, term, standby again (rules Z1, C3)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidemark.controller.ports import ControllerObserver
from tidemark.controller.term import ActiveTerm
from tidemark.model import BrokerId, ErrorCode, TidemarkError
from tidemark.ports import Clock, ControllerInfo, ControllerTerm, Scheduler, StoreEvent
from tidemark.zookeeper.reachable import no_cluster_id
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)
_POLL_MS: Final = 2000
"""A standby reads /controller at this interval even when no watch fires."""
_RETRY_MS: Final = 200


class ControllerLoop:
    """Stands for election and runs the terms it wins.

    Args:
        new_term: makes the driver of a won term; the second argument is the cluster id.

    Attributes:
        cluster_id: id of the cluster that this process has led or seen; "": none.
        stands_back: ZooKeeper's tree has lost its id, or has the id of another cluster, so this process is not elected.
    """

    def __init__(
        self,
        controller_id: BrokerId,
        address: str,
        *,
        store: MetadataStore,
        clock: Clock,
        scheduler: Scheduler,
        observer: ControllerObserver,
        new_term: Callable[[ControllerTerm, str], ActiveTerm],
        election_wait_ms: int = -1,
    ) -> None:
        self.term: ActiveTerm | None = None
        self.cluster_id = ""
        self.stands_back = False
        self._controller_id = controller_id
        self._address = address
        self._election_wait_ms = election_wait_ms
        self._store = store
        self._clock = clock
        self._scheduler = scheduler
        self._observer = observer
        self._new_term = new_term
        self._changed = scheduler.signal()
        """Event that is set when /controller or the session may have changed."""
        self._expired = False
        self._namesake = ""
        """Address of the last active controller that has the id of this process."""
        store.listen(self._on_store_event)

    def is_within_lease(self) -> bool:
        """Whether no other controller can have been elected; after its lease a term may have a successor."""
        return self.term is not None and self._clock.now_ms() < self._store.lease_valid_until_ms()

    async def run(self) -> None:
        """Run until cancelled. The caller has started the session."""
        while True:
            try:
                await self._one_round()
            except TidemarkError as error:
                _log.warning("ZooKeeper did not answer", extra={"why": str(error)})
                await self._scheduler.sleep_ms(_RETRY_MS)

    async def _one_round(self) -> None:
        if self._expired:
            await self._store.new_session()
            self._expired = False
        self._changed.clear()
        if not self.cluster_id:  # also a standby of a new cluster knows the id before it may lead an emptied tree
            self.cluster_id = await self._store.cluster_id()
        holder = await self._store.controller(watch=True)
        won = None
        if self.stands_back and not await self._is_of_this_cluster():
            await self._scheduler.wait(self._changed, _POLL_MS)
            return
        if holder is None or holder.controller_id == self._controller_id:
            won = await self._store.elect_controller(
                self._controller_id, self._address, election_wait_ms=self._election_wait_ms
            )
        if won is None:
            self._check_id(holder)
            await self._scheduler.wait(self._changed, _POLL_MS)
            return
        _log.info("elected", extra={"controller_epoch": won.epoch})
        try:
            self.cluster_id = await self._cluster_id()
        except TidemarkError as error:
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise
            _log.error("no controller of this tree", extra={"why": error.message})
            self.stands_back = True
            await self._store.resign(won)
            return
        term = self._new_term(won, self.cluster_id)
        self.term = term
        self._observer.term_begins(won.epoch, term.queue_size)
        try:
            await term.start()
            await term.ended.wait()
        finally:
            self.term = None
            await term.stop()
            self._observer.term_ends()
            if not self._expired:
                await self._resign(term)
        await self._scheduler.sleep_ms(_RETRY_MS)  # the wait lets a standby be elected first

    async def _is_of_this_cluster(self) -> bool:
        self.stands_back = await self._store.cluster_id() != self.cluster_id
        return not self.stands_back

    async def _cluster_id(self) -> str:
        """The id of the tree, created for a new cluster; raises INVALID_CONFIG if this process is of another one."""
        found = await self._store.cluster_id()
        if not self.cluster_id:
            return found or await self._store.create_cluster_id()
        if not found:
            raise no_cluster_id(self.cluster_id)
        if found != self.cluster_id:
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"ZooKeeper's tree is of cluster {found} now, and this controller is of cluster {self.cluster_id}: "
                "correct zookeeper.connect, restore the tree, or restart this controller for the other cluster",
            )
        return found

    def _check_id(self, holder: ControllerInfo | None) -> None:
        """Warn once of another process with this id; the epochs of their terms distinguish them."""
        if holder is None or holder.controller_id != self._controller_id or holder.address == self._address:
            return
        if self._namesake != holder.address:
            self._namesake = holder.address
            _log.warning(
                "another controller has this controller.id: give each its own",
                extra={"controller_id": holder.controller_id, "address": holder.address},
            )

    async def _resign(self, term: ActiveTerm) -> None:
        try:
            await self._store.resign(term.term)
        except TidemarkError as error:
            _log.info("cannot resign; ZooKeeper deletes /controller with the session", extra={"why": str(error)})

    def _on_store_event(self, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_EXPIRED:
            self._expired = True
            if self.term is not None:
                self.term.ended.set()
        if event in (StoreEvent.CONTROLLER, StoreEvent.SESSION_EXPIRED, StoreEvent.SESSION_RESTORED):
            self._changed.set()
        if self.term is not None:
            if event is StoreEvent.SESSION_RESTORED:
                for missed in (StoreEvent.BROKERS, StoreEvent.TOPICS):
                    self.term.on_store_event(missed)
            self.term.on_store_event(event)

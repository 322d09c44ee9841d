# SPDX-License-Identifier: Apache-2.0
"""The broker epochs that this controller has read (rules Z3, T2), kept when an operator deletes or writes their nodes.

The controller also restores the node: every election of that broker checks the version of the node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidemark.model import BrokerEpochRecord, BrokerId, BrokerRegistration
from tidemark.ports import ControllerTerm
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)


class EpochKeeper:
    """Remembers every broker epoch that `/brokers/epochs` had since this controller became active."""

    def __init__(self, term: ControllerTerm, store: MetadataStore) -> None:
        self._term = term
        self._store = store
        self._known: dict[BrokerId, BrokerEpochRecord] = {}

    async def read(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> Mapping[BrokerId, BrokerEpochRecord]:
        """Read all nodes, and use the last known record instead of missing and lower ones of live brokers.

        Without a known record, no state from before the present registration counts. The caller read `brokers`
        before this call, so a broker may have registered again since.
        """
        found = await self._store.broker_epochs()
        later = {one: record for one, record in found.items() if one in brokers and _is_later(record, brokers[one])}
        self._known |= {
            one: record for one, record in found.items() if one not in brokers or _is_of(record, brokers[one])
        }
        for broker, registration in brokers.items():
            known = self._known.get(broker)
            if known is None or known.broker_epoch < registration.broker_epoch:
                self._known[broker] = _nothing_trusted(registration)
        return {**self._known, **later}

    async def restore(self) -> bool:
        """Restore the nodes of live brokers that were deleted or written manually; returns whether there were any."""
        brokers = await self._store.live_brokers()
        found = await self._store.broker_epochs()
        any_restored = False
        for broker, registration in brokers.items():
            record = found.get(broker)
            if record is not None and _is_of(record, registration):
                continue
            known = self._known.get(broker)
            was = known if known is not None and _is_of(known, registration) else None
            if not await self._store.restore_broker_epoch(
                self._term, registration, was or _nothing_trusted(registration)
            ):
                continue
            any_restored = True
            _log.error(
                "a broker epoch node was deleted or written manually; restored",
                extra={
                    "path": f"/brokers/epochs/{broker}",
                    "broker": broker,
                    "broker_epoch": registration.broker_epoch,
                },
            )
        return any_restored


def _is_of(record: BrokerEpochRecord, registration: BrokerRegistration) -> bool:
    return record.broker_epoch == registration.broker_epoch


def _is_later(record: BrokerEpochRecord, registration: BrokerRegistration) -> bool:
    """Whether the broker has registered again, or the node was written manually."""
    return record.broker_epoch > registration.broker_epoch


def _nothing_trusted(registration: BrokerRegistration) -> BrokerEpochRecord:
    epoch = registration.broker_epoch
    return BrokerEpochRecord(epoch, registration.directory_ids, unclean_at=epoch, lost_at=epoch)

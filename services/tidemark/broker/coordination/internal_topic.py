# SPDX-License-Identifier: Apache-2.0
"""Creates an internal topic at its first use: its node in ZooKeeper, as the admin service creates topics.

Several brokers may try at the same time: the write requires that the node does not exist. The controller then elects
leaders (rule C4).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Final

from tidemark.core.planning.placement import assign_replicas
from tidemark.model import ErrorCode, TidemarkError, TopicDescription
from tidemark.zookeeper.store import MetadataStore

_SEGMENT_BYTES: Final = 4 << 20
"""Small, since compaction skips the active segment, which a new coordinator reads after the compacted segments."""
_QUIET_S: Final = 1.0
"""Shortest time between two attempts, so that repeated calls of clients do not load ZooKeeper."""

_log = logging.getLogger(__name__)


class InternalTopic:
    """Creates the topic if it does not exist.

    Args:
        name: name of the topic.
        factor_setting: the setting of `replication_factor`, for errors.
    """

    def __init__(
        self, name: str, store: MetadataStore, *, partitions: int, replication_factor: int, factor_setting: str
    ) -> None:
        self.name = name
        self._store = store
        self._factor_setting = factor_setting
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._trying = asyncio.Lock()
        self._not_before_s = 0.0

    async def ensure(self) -> None:
        """Create the topic unless it exists. Raises COORDINATOR_NOT_AVAILABLE when that is not possible now."""
        async with self._trying:
            if time.monotonic() < self._not_before_s:
                return
            self._not_before_s = time.monotonic() + _QUIET_S
            try:
                await self._create()
            except TidemarkError as error:
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
                raise TidemarkError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{self.name} cannot be created now ({error.message}); retry",
                ) from error

    async def _create(self) -> None:
        topics, brokers, draining = await asyncio.gather(
            self._store.topics(), self._store.live_brokers(), self._store.draining_brokers()
        )
        if self.name in topics:
            return
        placed_on = {broker_id: broker.rack for broker_id, broker in brokers.items() if broker_id not in draining}
        known = frozenset(await self._store.broker_epochs()) - draining
        factor = min(self._replication_factor, len(known))
        if not placed_on or len(placed_on) < factor:
            raise TidemarkError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{len(placed_on)} of {len(known)} brokers are up, and the topic needs {factor} replicas: start the "
                f"others, or set {self._factor_setting}",
            )
        assigned = assign_replicas(
            placed_on,
            partitions=self._partitions,
            replication_factor=factor,
            existing=[replicas for topic in topics.values() for replicas in topic.partitions.values()],
        )
        await self._store.create_topic(
            TopicDescription(
                topic=self.name,
                topic_id=uuid.uuid4().hex,
                partitions=dict(enumerate(assigned)),
                incarnations={partition: uuid.uuid4().hex for partition in range(len(assigned))},
                configs={"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES)},
            )
        )
        facts = {"topic": self.name, "partitions": self._partitions, "replicas": factor}
        _log.info("an internal topic is created", extra=facts)
        if factor < self._replication_factor:
            _log.warning(
                "an internal topic has fewer replicas than its setting, since fewer brokers have registered so far; "
                "add replicas with `tidemark reassign` once the other brokers run",
                extra={**facts, self._factor_setting: self._replication_factor},
            )

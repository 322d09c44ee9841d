# SPDX-License-Identifier: Apache-2.0
"""What the blocking admin client can do about the log directories of brokers."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.client.aio.admin.log_dirs import LogDirCalls as AsyncLogDirCalls
from tidemark.client.sync.event_loop_thread import BackgroundLoop
from tidemark.core.reassignment.log_dir_placement import PlacedReplica, ReplicaPlace
from tidemark.model import TopicPartition
from tidemark.rpc.broker_log_dirs import BrokerLogDirs


class LogDirCalls:
    """Part of the blocking `AdminClient`; see the async one for what arguments mean."""

    _client: AsyncLogDirCalls
    _background: BackgroundLoop

    def describe_log_dirs(
        self,
        brokers: Sequence[int] = (),
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
    ) -> list[BrokerLogDirs]:
        """What lies in the log directories of brokers now, by broker; one that does not answer carries an error."""
        return self._background.call(self._client.describe_log_dirs(brokers, topics=topics, partitions=partitions))

    def alter_replica_log_dirs(
        self, replicas: Sequence[ReplicaPlace], *, throttle_bytes_per_s: int = 0, validate_only: bool = False
    ) -> list[PlacedReplica]:
        """Move replicas between the log directories of their brokers; returns when that is noted, not done."""
        return self._background.call(
            self._client.alter_replica_log_dirs(
                replicas, throttle_bytes_per_s=throttle_bytes_per_s, validate_only=validate_only
            )
        )

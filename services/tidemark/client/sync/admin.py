# SPDX-License-Identifier: Apache-2.0
"""The sync AdminClient: the async one on the process's background loop. It loads nothing that records need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.client.aio.admin.client import AdminClient as AsyncAdminClient
from tidemark.client.aio.admin.client import ClusterDescription
from tidemark.client.created_topic import CreatedTopic
from tidemark.client.sync.admin_brokers import BrokerCalls
from tidemark.client.sync.admin_configs import ConfigCalls
from tidemark.client.sync.admin_log_dirs import LogDirCalls
from tidemark.client.sync.admin_reassignments import ReassignmentCalls
from tidemark.client.sync.admin_records import RecordCalls
from tidemark.client.sync.closing import START_S, Facade
from tidemark.client.sync.event_loop_thread import background_loop
from tidemark.core.cluster_view import TopicView
from tidemark.model import ElectionKind, ElectionOutcome, TopicPartition, UncleanElection


class AdminClient(ConfigCalls, ReassignmentCalls, BrokerCalls, RecordCalls, LogDirCalls, Facade):
    """As `tidemark.client.aio.AdminClient`, blocking."""

    _client: AsyncAdminClient

    def __init__(self, admin: str | None = None, *, bootstrap: str | None = None, timeout_s: float = 30.0) -> None:
        self._client = AsyncAdminClient(admin, bootstrap=bootstrap, timeout_s=timeout_s)
        self._background = background_loop()
        self._background.call(self._client.start(), START_S)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        request_id: str = "",
    ) -> CreatedTopic:
        """Create a topic and wait until every partition has a leader; its `warnings` are worth showing to its maker."""
        return self._background.call(
            self._client.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=validate_only,
                request_id=request_id,
            )
        )

    def delete_topic(self, name: str, *, validate_only: bool = False, request_id: str = "") -> None:
        """Delete a topic and wait until it is gone; raises UNKNOWN_TOPIC."""
        self._background.call(self._client.delete_topic(name, validate_only=validate_only, request_id=request_id))

    def list_topics(self) -> list[str]:
        """All names, sorted."""
        return self._background.call(self._client.list_topics())

    def describe_topics(self, names: Sequence[str] = ()) -> list[TopicView]:
        """Topics in the order asked for (none: all); one that does not exist carries an error."""
        return self._background.call(self._client.describe_topics(names))

    def describe_cluster(self) -> ClusterDescription:
        """Brokers, controller and counts."""
        return self._background.call(self._client.describe_cluster())

    def elect_leaders(
        self,
        kind: ElectionKind,
        partitions: Sequence[TopicPartition] = (),
        *,
        topics: Sequence[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ElectionOutcome]:
        """Hold elections and wait for what comes of them; each partition succeeds or carries an error."""
        return self._background.call(
            self._client.elect_leaders(
                kind, partitions, topics=topics, validate_only=validate_only, request_id=request_id
            )
        )

    def list_unclean_elections(self, topics: Sequence[str] = ()) -> list[UncleanElection]:
        """The loss reports kept (no topics: of all), by partition, the oldest first; raises UNKNOWN_TOPIC."""
        return self._background.call(self._client.list_unclean_elections(topics))

    def close(self) -> None:
        """Close the connection."""
        if self._ends_now():
            self._background.call(self._client.close())

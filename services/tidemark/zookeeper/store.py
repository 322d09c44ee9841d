# SPDX-License-Identifier: Apache-2.0
"""`ports.MetadataStore` over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tidemark.core.config_resource import ConfigResource, VersionedConfigs
from tidemark.core.quotas.quotas import Limits, QuotaEntity, Quotas
from tidemark.core.security.acls import Acl
from tidemark.core.security.authorizer import Rules
from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionRequest,
    PartitionReassignment,
    PartitionRequests,
    ReassignmentRequests,
    Refusal,
    ReplicaIdentity,
    SchemaText,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    UncleanElection,
    VersionedState,
)
from tidemark.ports import (
    AdminRequest,
    Clock,
    ClusterSnapshot,
    ControllerInfo,
    ControllerTerm,
    RestartClaim,
    StateRebuild,
    StateWrite,
    StoreEvent,
    WriteResult,
)
from tidemark.runtime.shared_calls import SharedCall
from tidemark.runtime.termination import refuse_settings
from tidemark.zookeeper import (
    brokers,
    damaged_states,
    draining,
    election,
    lost_epochs,
    paths,
    refusals,
    requested_elections,
    restart_claims,
    states,
    topics,
)
from tidemark.zookeeper import configs as config_nodes
from tidemark.zookeeper import moves as move_nodes
from tidemark.zookeeper import partition_requests as partition_nodes
from tidemark.zookeeper import requests as request_nodes
from tidemark.zookeeper.access_rules import node as acl_node
from tidemark.zookeeper.mirror.cluster_mirror import ClusterMirror
from tidemark.zookeeper.security.tls import ZooKeeperTls, tls_of
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.sessions.session import ZooKeeperSession
from tidemark.zookeeper.sessions.session_metrics import SessionMetrics, SessionTally
from tidemark.zookeeper.topic_reader import TopicReader
from tidemark.zookeeper.topic_schemas import nodes as schema_nodes
from tidemark.zookeeper.whole_nodes import quotas as quota_node

if TYPE_CHECKING:
    from tidemark.runtime.configuration.settings import ServiceSettings

_WATCHED: Final = (
    StoreEvent.BROKERS,
    StoreEvent.TOPICS,
    StoreEvent.DELETIONS,
    StoreEvent.ELECTIONS,
    StoreEvent.MOVES,
    StoreEvent.PARTITION_REQUESTS,
    StoreEvent.CONTROLLER,
    StoreEvent.CONFIGS,
    StoreEvent.ACLS,
    StoreEvent.QUOTAS,
)

_PAUSE_MS: Final = 5
"""Pause between snapshots under load: some more callers share each, and a snapshot costs more than a call."""


class SessionMetadataStore:
    """The store over a session; `ports.MetadataStore` documents each call.

    Args:
        session_of: creates the session for a listener of its events.
    """

    def __init__(self, session_of: Callable[[Callable[[StoreEvent], None]], Session]) -> None:
        self._session = session_of(self._tell)
        self._topics = TopicReader(self._session)
        self._listeners: list[Callable[[StoreEvent], None]] = []
        self._watchers: dict[StoreEvent, Callable[[Any], None]] = {}
        self._unreadable = states.Complaints()
        self._mirror = ClusterMirror(self._session, self._unreadable)
        self._snapshots = SharedCall(self._mirror.read, pause_ms=_PAUSE_MS)

    def listen(self, listener: Callable[[StoreEvent], None]) -> None:
        self._listeners.append(listener)

    def lease_valid_until_ms(self) -> int:
        return self._session.lease_valid_until_ms()

    def lease_length_ms(self) -> int:
        return self._session.lease_length_ms()

    async def start(self) -> None:
        self._watchers = {event: self._session.watcher(event) for event in _WATCHED}
        await self._session.start()
        try:
            await self._make_parents()
        except BaseException:
            await self._session.stop()
            raise

    async def stop(self) -> None:
        await self._session.stop()

    async def new_session(self) -> None:
        await self._session.renew()

    async def cluster_id(self) -> str:
        return await election.cluster_id(self._session)

    async def cluster_snapshot(self) -> ClusterSnapshot:
        return await self._snapshots.result()

    # brokers

    async def register_broker(
        self,
        registration: BrokerRegistration,
        *,
        clean: bool,
        locked_directory_ids: frozenset[str],
        flushed_kept: bool = False,
        crashed: bool = False,
    ) -> BrokerEpoch:
        return await brokers.register(
            self._session,
            registration,
            clean=clean,
            flushed_kept=flushed_kept,
            crashed=crashed,
            locked_directory_ids=locked_directory_ids,
        )

    async def live_brokers(self, *, watch: bool = False) -> Mapping[BrokerId, BrokerRegistration]:
        return await brokers.live(self._session, self._watch(StoreEvent.BROKERS, watch))

    async def broker_epochs(self) -> Mapping[BrokerId, BrokerEpochRecord]:
        return await brokers.epochs(self._session)

    async def restore_broker_epoch(
        self, term: ControllerTerm, registration: BrokerRegistration, was: BrokerEpochRecord
    ) -> None:
        await lost_epochs.restore(self._session, term, registration, was)

    # brokers that are removed

    async def draining_brokers(self) -> frozenset[BrokerId]:
        return await draining.read(self._session)

    async def begin_draining(self, brokers: Collection[BrokerId]) -> None:
        await draining.begin(self._session, brokers)

    async def end_draining(self, brokers: Collection[BrokerId]) -> None:
        await draining.end(self._session, brokers)

    async def forget_broker_configs(self, broker: BrokerId) -> None:
        await draining.forget_configs(self._session, broker)

    # brokers that are restarted

    async def restart_claim(self) -> RestartClaim | None:
        return await restart_claims.read(self._session)

    async def write_restart_claim(self, claim: RestartClaim) -> bool:
        return await restart_claims.write(self._session, claim)

    async def end_restart_claim(self, claim: RestartClaim) -> None:
        await restart_claims.end(self._session, claim)

    # topics

    async def topics(
        self, names: Sequence[str] | None = None, *, watch: bool = False, unreadable: set[str] | None = None
    ) -> Mapping[str, TopicDescription]:
        if names is None:
            return await self._topics.read(self._watch(StoreEvent.TOPICS, watch), unreadable)
        return await topics.read(self._session, names, self._watch(StoreEvent.TOPICS, watch))

    async def create_topic(self, topic: TopicDescription) -> TopicDescription:
        return await topics.create(self._session, topic)

    async def add_schema(
        self, topic: TopicDescription, version: int, schema: SchemaText, *, receipt: AdminRequest | None = None
    ) -> bool:
        return await schema_nodes.add(self._session, topic, version, schema, receipt)

    async def request_topic_deletion(self, topic: str, topic_id: str = "") -> None:
        await topics.request_deletion(self._session, topic, topic_id)

    async def requested_deletions(self, *, watch: bool = False) -> frozenset[str]:
        return await topics.requested_deletions(self._session, self._watch(StoreEvent.DELETIONS, watch))

    async def delete_topic(self, term: ControllerTerm, topic: TopicDescription) -> None:
        await topics.delete(self._session, term, topic)

    # partition states

    async def states(
        self,
        partitions: Sequence[TopicPartition],
        *,
        sync: bool = False,
        unreadable: set[TopicPartition] | None = None,
    ) -> Mapping[TopicPartition, VersionedState]:
        if sync:
            await self._session.sync()
        return await states.read(self._session, partitions, unreadable, self._unreadable)

    async def write_states(self, term: ControllerTerm, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        return await states.write_of_controller(self._session, term, writes)

    async def damaged_versions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return await damaged_states.versions(self._session, partitions)

    async def rebuild_states(self, term: ControllerTerm, rebuilds: Sequence[StateRebuild]) -> Sequence[bool]:
        return await damaged_states.rebuild(self._session, term, rebuilds)

    async def write_isrs(self, writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        return await states.write_of_leader(self._session, writes)

    async def read_isrs(
        self, asked: Mapping[TopicPartition, ReplicaIdentity], *, unreadable: set[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, VersionedState]:
        return await states.read_for_leader(self._session, asked, set() if unreadable is None else unreadable)

    # requested elections

    async def request_elections(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition], request_id: str = ""
    ) -> bool:
        return await requested_elections.request(self._session, kind, partitions, request_id)

    async def requested_elections(self, kind: ElectionKind, *, watch: bool = False) -> ElectionRequest | None:
        return await requested_elections.read(self._session, kind, self._watch(StoreEvent.ELECTIONS, watch))

    async def finish_elections(self, term: ControllerTerm, request: ElectionRequest) -> None:
        await requested_elections.finish(self._session, term, request)

    async def unclean_elections(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Sequence[UncleanElection]]:
        return await requested_elections.reports(self._session, partitions)

    # partition reassignments

    async def submit_moves(self, moves: Sequence[PartitionReassignment]) -> None:
        await move_nodes.submit(self._session, moves)

    async def cancel_moves(self, partitions: Sequence[TopicPartition]) -> None:
        await move_nodes.cancel(self._session, partitions)

    async def move_requests(self, *, watch: bool = False) -> ReassignmentRequests:
        return await move_nodes.read(self._session, self._watch(StoreEvent.MOVES, watch))

    async def finish_moves(
        self, term: ControllerTerm, finished: Sequence[PartitionReassignment], refused: Sequence[Refusal]
    ) -> None:
        await move_nodes.finish(self._session, term, finished, refused)

    async def write_topic(self, term: ControllerTerm, topic: TopicDescription) -> TopicDescription | None:
        return await move_nodes.write_topic(self._session, term, topic)

    # partitions added and removed

    async def request_partitions(
        self,
        added: Mapping[TopicPartition, tuple[BrokerId, ...]],
        topic_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        await partition_nodes.request_added(self._session, added, topic_ids)

    async def request_partition_removal(
        self, removed: Mapping[TopicPartition, bool], topic_ids: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        await partition_nodes.request_removed(self._session, removed, topic_ids)

    async def partition_requests(self, *, watch: bool = False) -> PartitionRequests:
        return await partition_nodes.read(self._session, self._watch(StoreEvent.PARTITION_REQUESTS, watch))

    async def finish_partition_requests(
        self,
        term: ControllerTerm,
        *,
        added: Sequence[TopicPartition] = (),
        removed: Mapping[TopicPartition, bool] = MappingProxyType({}),
        refused: Sequence[Refusal] = (),
    ) -> None:
        await partition_nodes.finish(self._session, term, added, removed, refused)

    async def delete_partitions(self, term: ControllerTerm, topic: TopicDescription, partitions: Sequence[int]) -> None:
        await partition_nodes.delete(self._session, term, topic, partitions)

    async def refusals(self) -> Sequence[Refusal]:
        return await refusals.read(self._session)

    # controller

    async def elect_controller(
        self, controller_id: BrokerId, address: str, *, election_wait_ms: int = -1
    ) -> ControllerTerm | None:
        return await election.elect(self._session, controller_id, address, election_wait_ms)

    async def controller(self, *, watch: bool = False) -> ControllerInfo | None:
        return await election.current(self._session, self._watch(StoreEvent.CONTROLLER, watch))

    async def resign(self, term: ControllerTerm) -> None:
        await election.resign(self._session, term)

    async def next_producer_ids(self, count: int, *, at_least: int = 0) -> range:
        return await election.next_producer_ids(self._session, count, at_least)

    # settings

    async def configs(
        self, resources: Sequence[ConfigResource], *, watch: bool = False
    ) -> Mapping[ConfigResource, VersionedConfigs]:
        return await config_nodes.read(self._session, resources, self._watch(StoreEvent.CONFIGS, watch))

    async def write_configs(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str],
        *,
        version: int,
        receipt: AdminRequest | None = None,
    ) -> bool:
        return await config_nodes.write(self._session, resource, configs, version, receipt)

    # access rules

    async def acls(self, *, watch: bool = False) -> Rules:
        return await acl_node.read(self._session, self._watch(StoreEvent.ACLS, watch))

    async def write_acls(self, acls: Collection[Acl], *, version: int) -> bool:
        return await acl_node.write(self._session, acls, version)

    # quotas

    async def quotas(self, *, watch: bool = False) -> Quotas:
        return await quota_node.read(self._session, self._watch(StoreEvent.QUOTAS, watch))

    async def write_quotas(self, limits: Mapping[QuotaEntity, Limits], *, version: int) -> bool:
        return await quota_node.write(self._session, limits, version)

    # requests that are carried out once

    async def begin_request(self, request: AdminRequest) -> AdminRequest:
        return await request_nodes.begin(self._session, request)

    async def kept_request(self, request_id: str) -> AdminRequest | None:
        return await request_nodes.read(self._session, request_id)

    async def finish_request(self, request: AdminRequest) -> AdminRequest:
        return await request_nodes.finish(self._session, request)

    async def forget_request(self, request: AdminRequest) -> None:
        await request_nodes.forget(self._session, request)

    async def expire_requests(self, before_ms: int) -> int:
        return await request_nodes.expire(self._session, before_ms)

    def _watch(self, event: StoreEvent, wanted: bool) -> Callable[[Any], None] | None:
        return self._watchers[event] if wanted else None

    def _tell(self, event: StoreEvent) -> None:
        self._mirror.on_event(event)
        for listener in self._listeners:
            listener(event)

    async def _make_parents(self) -> None:
        await self._session.ensure_chroot()
        for path in paths.PARENTS:
            await self._session.ensure(path)


class ZooKeeperMetadataStore(SessionMetadataStore):
    """The store over a real ZooKeeper.

    Args:
        connect: `zookeeper.connect`: host:port[,host:port...][/chroot].
        session_timeout_ms: `zookeeper.session.timeout.ms`; also the deadline of a request, at least 1 s.
        clock: the clock of the lease (rule F1).
        tls: the certificate of its sessions; None: plain text.

    Attributes:
        metrics: the metrics of its sessions.
    """

    def __init__(self, connect: str, session_timeout_ms: int, clock: Clock, tls: ZooKeeperTls | None = None) -> None:
        tally = SessionTally()
        super().__init__(lambda on_event: ZooKeeperSession(connect, session_timeout_ms, clock, on_event, tally, tls))
        not_after_s = (lambda: 0.0) if tls is None else tls.not_after_s
        self.metrics = SessionMetrics(tally, self.lease_valid_until_ms, clock.now_ms, not_after_s)


def store_of(settings: ServiceSettings, clock: Clock) -> ZooKeeperMetadataStore:
    """The store of a service.

    Invalid TLS files end the process with status 2 and one line on stderr, as do invalid settings.
    """
    try:
        tls = tls_of(settings)
    except TidemarkError as error:
        refuse_settings(settings.owner, settings.termination_message_path, error)
    return ZooKeeperMetadataStore(settings.zookeeper_connect, settings.zookeeper_session_timeout_ms, clock, tls)

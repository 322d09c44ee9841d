# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper in the terms of Tidemark: a table of the calls, which modules of this package carry out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from tidemark.core.config_resource import ConfigResource, VersionedConfigs
from tidemark.core.quotas.quotas import Quotas
from tidemark.core.security.authorizer import Rules
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionRequest,
    PartitionRequests,
    ReassignmentRequests,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.ports import Clock, ClusterSnapshot, ControllerInfo, StoreEvent
from tidemark.runtime.shared_calls import SharedCall
from tidemark.runtime.termination import refuse_settings
from tidemark.zookeeper import brokers, damaged_states, draining, election, lost_epochs, paths, restart_claims
from tidemark.zookeeper import configs as config_nodes
from tidemark.zookeeper import moves as move_nodes
from tidemark.zookeeper import partition_requests as partition_nodes
from tidemark.zookeeper import refusals as refusal_nodes
from tidemark.zookeeper import requested_elections as election_nodes
from tidemark.zookeeper import requests as request_nodes
from tidemark.zookeeper import states as state_nodes
from tidemark.zookeeper import topics as topic_nodes
from tidemark.zookeeper.mirror.cluster_mirror import ClusterMirror
from tidemark.zookeeper.security.tls import ZooKeeperTls, tls_of
from tidemark.zookeeper.session_port import Session
from tidemark.zookeeper.sessions.session import ZooKeeperSession
from tidemark.zookeeper.sessions.session_metrics import SessionMetrics, SessionTally
from tidemark.zookeeper.topic_reader import TopicReader
from tidemark.zookeeper.topic_schemas import nodes as schema_nodes
from tidemark.zookeeper.whole_nodes import acls as acl_node
from tidemark.zookeeper.whole_nodes import quotas as quota_node

if TYPE_CHECKING:
    from tidemark.runtime.configuration.settings import ServiceSettings

_PAUSE_MS: Final = 5
"""Pause between snapshots under load: some more callers share each, and a snapshot costs more than a call."""

P = ParamSpec("P")
T = TypeVar("T")


def _over_session(
    function: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of the store that calls this function with the store's session; it has the function's docstring."""

    @functools.wraps(function)
    def call(self: MetadataStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return function(self._session, *args, **kwargs)

    return call


class MetadataStore:
    """The data of a cluster in ZooKeeper.

    Every call raises TidemarkError(COORDINATION_UNAVAILABLE) without an answer in time; the write of such a call may
    have taken place. With `watch`, listeners are notified of the next change of the nodes that the call reads.

    Args:
        session_of: creates the session for a listener of its events.
    """

    def __init__(self, session_of: Callable[[Callable[[StoreEvent], None]], Session]) -> None:
        self._session = session_of(self._tell)
        self._topics = TopicReader(self._session)
        self._listeners: list[Callable[[StoreEvent], None]] = []
        self._watchers: dict[StoreEvent, Callable[[Any], None]] = {}
        self._unreadable = state_nodes.Complaints()
        self._mirror = ClusterMirror(self._session, self._unreadable)
        self._snapshots = SharedCall(self._mirror.read, pause_ms=_PAUSE_MS)

    def listen(self, listener: Callable[[StoreEvent], None]) -> None:
        """Call `listener` with every notification, on the event loop."""
        self._listeners.append(listener)

    def lease_valid_until_ms(self) -> int:
        """End of the session lease on the clock (rule F1); 0 with no session."""
        return self._session.lease_valid_until_ms()

    def lease_length_ms(self) -> int:
        """Length of a lease: the negotiated session timeout less a margin; 0 before the first session."""
        return self._session.lease_length_ms()

    async def start(self) -> None:
        """Connect, and create missing parent nodes of the layout."""
        self._watchers = {event: self._session.watcher(event) for event in StoreEvent}
        await self._session.start()
        try:
            await self._make_parents()
        except BaseException:
            await self._session.stop()
            raise

    async def restore_parents(self) -> Sequence[str]:
        """Create the parent nodes of the layout that were deleted manually; returns their paths."""
        nodes = await self._session.read_many(paths.PARENTS)
        missing = [path for path, node in zip(paths.PARENTS, nodes, strict=True) if node is None]
        for path in missing:
            await self._session.ensure(path)
        return missing

    async def stop(self) -> None:
        """Close the session, which deletes its ephemeral nodes."""
        await self._session.stop()

    async def new_session(self) -> None:
        """Connect again after SESSION_EXPIRED."""
        await self._session.renew()

    cluster_id = _over_session(election.cluster_id)
    create_cluster_id = _over_session(election.create_cluster_id)

    async def cluster_snapshot(self) -> ClusterSnapshot:
        """The state of the nodes that describe the cluster, at the time of this call or later.

        The store keeps a copy up to date by watches; concurrent callers share a read. Without a change, the call
        returns the same object as before.
        """
        return await self._snapshots.result()

    # brokers

    register_broker = _over_session(brokers.register)

    async def live_brokers(self, *, watch: bool = False) -> Mapping[BrokerId, BrokerRegistration]:
        """The registrations in /brokers/ids."""
        return await brokers.live(self._session, self._watch(StoreEvent.BROKERS, watch))

    broker_epochs = _over_session(brokers.epochs)
    restore_broker_epoch = _over_session(lost_epochs.restore)

    # brokers that are removed

    draining_brokers = _over_session(draining.read)
    begin_draining = _over_session(draining.begin)
    end_draining = _over_session(draining.end)
    forget_broker_configs = _over_session(draining.forget_configs)

    # brokers that are restarted

    restart_claim = _over_session(restart_claims.read)
    write_restart_claim = _over_session(restart_claims.write)
    end_restart_claim = _over_session(restart_claims.end)

    # topics

    async def topics(
        self, names: Sequence[str] | None = None, *, watch: bool = False, unreadable: set[str] | None = None
    ) -> Mapping[str, TopicDescription]:
        """The topics of `names` that exist (None: all topics), with their configs and schemas, pipelined.

        Topics whose nodes do not parse are omitted and added to `unreadable`; without that set, a topic of `names` is
        refused.
        """
        if names is None:
            return await self._topics.read(self._watch(StoreEvent.TOPICS, watch), unreadable)
        return await topic_nodes.read(self._session, names, self._watch(StoreEvent.TOPICS, watch), unreadable)

    create_topic = _over_session(topic_nodes.create)
    add_schema = _over_session(schema_nodes.add)
    request_topic_deletion = _over_session(topic_nodes.request_deletion)

    async def requested_deletions(self, *, watch: bool = False) -> frozenset[str]:
        """Children of /admin/delete_topics, except requests for an earlier topic of the name."""
        return await topic_nodes.requested_deletions(self._session, self._watch(StoreEvent.DELETIONS, watch))

    delete_topic = _over_session(topic_nodes.delete)

    # partition states

    async def states(
        self,
        partitions: Sequence[TopicPartition],
        *,
        sync: bool = False,
        unreadable: set[TopicPartition] | None = None,
    ) -> Mapping[TopicPartition, VersionedState]:
        """The states that exist, pipelined; with `sync`, after a ZooKeeper sync.

        A state whose node does not parse, or was deleted manually, is omitted and added to `unreadable`.
        """
        if sync:
            await self._session.sync()
        return await state_nodes.read(self._session, partitions, unreadable, self._unreadable)

    write_states = _over_session(state_nodes.write_of_controller)
    damaged_versions = _over_session(damaged_states.versions)
    rebuild_states = _over_session(damaged_states.rebuild)
    write_isrs = _over_session(state_nodes.write_of_leader)
    read_isrs = _over_session(state_nodes.read_for_leader)

    # requested elections

    request_elections = _over_session(election_nodes.request)

    async def requested_elections(self, kind: ElectionKind, *, watch: bool = False) -> ElectionRequest | None:
        """The node of this kind, which may carry an error; None if it does not exist."""
        return await election_nodes.read(self._session, kind, self._watch(StoreEvent.ELECTIONS, watch))

    finish_elections = _over_session(election_nodes.finish)
    unclean_elections = _over_session(election_nodes.reports)

    # partition reassignments

    submit_moves = _over_session(move_nodes.submit)
    cancel_moves = _over_session(move_nodes.cancel)

    async def move_requests(self, *, watch: bool = False) -> ReassignmentRequests:
        """The requests in /admin/reassign_partitions; entries that do not parse are in `malformed`."""
        return await move_nodes.read(self._session, self._watch(StoreEvent.MOVES, watch))

    finish_moves = _over_session(move_nodes.finish)
    write_topic = _over_session(move_nodes.write_topic)

    # partitions added and removed

    request_partitions = _over_session(partition_nodes.request_added)
    request_partition_removal = _over_session(partition_nodes.request_removed)

    async def partition_requests(self, *, watch: bool = False) -> PartitionRequests:
        """The requests below /admin/partitions_add and /admin/partitions_remove."""
        return await partition_nodes.read(self._session, self._watch(StoreEvent.PARTITION_REQUESTS, watch))

    finish_partition_requests = _over_session(partition_nodes.finish)
    delete_partitions = _over_session(partition_nodes.delete)
    refusals = _over_session(refusal_nodes.read)

    # controller

    elect_controller = _over_session(election.elect)

    async def controller(self, *, watch: bool = False) -> ControllerInfo | None:
        """The content of /controller; None without a node, or with one that was created manually."""
        return await election.current(self._session, self._watch(StoreEvent.CONTROLLER, watch))

    resign = _over_session(election.resign)
    next_producer_ids = _over_session(election.next_producer_ids)

    # settings

    async def configs(
        self, resources: Sequence[ConfigResource], *, watch: bool = False
    ) -> Mapping[ConfigResource, VersionedConfigs]:
        """The explicit settings of each resource; empty, at version -1, for a resource without settings."""
        return await config_nodes.read(self._session, resources, self._watch(StoreEvent.CONFIGS, watch))

    write_configs = _over_session(config_nodes.write)

    # access rules

    async def acls(self, *, watch: bool = False) -> Rules:
        """All access rules; of generation -1 while there are none. Raises INTERNAL for a damaged node."""
        return await acl_node.read(self._session, self._watch(StoreEvent.ACLS, watch))

    write_acls = _over_session(acl_node.write)

    # quotas

    async def quotas(self, *, watch: bool = False) -> Quotas:
        """All quotas; of generation -1 while there are none. Raises INTERNAL for a damaged node."""
        return await quota_node.read(self._session, self._watch(StoreEvent.QUOTAS, watch))

    write_quotas = _over_session(quota_node.write)

    # requests that are carried out once

    begin_request = _over_session(request_nodes.begin)
    kept_request = _over_session(request_nodes.read)
    finish_request = _over_session(request_nodes.finish)
    forget_request = _over_session(request_nodes.forget)
    expire_requests = _over_session(request_nodes.expire)

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


class ZooKeeperMetadataStore(MetadataStore):
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

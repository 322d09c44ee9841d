# SPDX-License-Identifier: Apache-2.0
"""One client's metadata of the cluster, and its channels to brokers (rule K2).

Updates are merged by zxids and epochs, so their order does not matter. Updates arrive on a metadata stream from one
broker, preferably not the one that this client uses most. If the client's main broker fails, the stream still reports
new leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from asyncio import to_thread
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

import grpc

from tidemark.client.metadata.backoff import METADATA_ATTEMPT_S_MAX, AttemptTimeout, Backoff
from tidemark.client.metadata.bootstrap import Bootstrap, parse_bootstrap
from tidemark.client.metadata.closed_calls import unary_calls
from tidemark.client.metadata.no_answer import is_other_service, no_answer, none_answers
from tidemark.client.metadata.other_clusters import replacement, why_unusable
from tidemark.client.metadata.silence import Silence
from tidemark.client.metadata.tls import Credentials, client_identity
from tidemark.client.metadata.unknown_topics import UnknownTopics
from tidemark.client.metadata.used_topics import UsedTopics
from tidemark.client.suggestions import nearest
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView, taken_over
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicPartition,
    unknown_partition,
    unknown_topic,
)
from tidemark.rpc.channel import AddressChannels
from tidemark.rpc.codecs.metadata import view_from_proto
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.quotas.client_id import headers_with
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.rpc.request_limits import NAMED_MAX, in_requests
from tidemark.rpc.security.paths import TlsFiles
from tidemark.runtime.clock import timeout
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

if TYPE_CHECKING:
    from tidemark.v1.broker_service_pb2_grpc import BrokerServiceAsyncStub

_T = TypeVar("_T")

_log = logging.getLogger("tidemark.client")

_METADATA_S: Final = 2.0
"""First timeout of a request for metadata."""
CONNECT_TIMEOUT_S = 10.0
"""Longest time that `start` looks for a broker that answers."""
TOPIC_PATIENCE_S = 5.0
"""Time to retry a topic that no broker knows: the controller's update may not have reached the brokers yet. While the
brokers name no controller, the whole time of the call."""
REPLACED_LEADER_S: Final = 30.0
"""Time for which a replaced leader may still answer: longer than the session of a broker."""
ON_ITS_WAY: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})
"""Errors of a broker that has no metadata of the partition yet, or that knows of its deletion."""
_REPLACED_CLUSTER_S: Final = 30.0
"""Time without an answer of the known cluster, after which another cluster at a bootstrap address replaces it although
other addresses do not answer."""
_NEXT_BROKER_S: Final = 0.2
"""Time to wait for one broker before the next one is asked as well."""
_ASK_S_MIN: Final = 0.05
_NAMES_S: Final = 1.0
"""Time limit of the request for all names; an error suggests the nearest name."""
_NAMES_AT_ONCE: Final = 1_000
"""Names that are compared on the event loop; more of them are compared on another thread."""
_GATHER_S: Final = 0.001
_GATHER_S_MAX: Final = 2.0
"""Time for each used topic, and at most, in which new topics gather for the next metadata stream, which names all."""
_WARN_S: Final = 30.0
"""Interval of the log line that no broker answers."""


class Leader(NamedTuple):
    """The leader of a partition, and the epoch and ids that requests to it carry (rule E4)."""

    broker_id: BrokerId
    address: str
    leader_epoch: LeaderEpoch
    topic_id: str
    incarnation: str


def leader_in(topic: TopicView, index: int, brokers: Mapping[BrokerId, BrokerRegistration]) -> Leader | None:
    """Return the leader of a partition; None if it has none, or its broker is not among `brokers`."""
    view = topic.partitions.get(index)
    broker = None if view is None or view.leader == NO_LEADER else brokers.get(view.leader)
    if view is None or broker is None:
        return None
    return Leader(view.leader, broker.address, view.leader_epoch, topic.topic_id, view.incarnation)


class Cluster:
    """One client's metadata of the cluster; used on one event loop.

    Args:
        bootstrap: addresses of any brokers; None: TIDEMARK_BOOTSTRAP.
        timeout_s: time that `start` looks for a broker that answers, if less than CONNECT_TIMEOUT_S.
        tls: the TLS files, and a token if any; None: files and token of the environment, or plain text.
        client_id: the name that the client states, checked; "": no name.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None,
        *,
        timeout_s: float = math.inf,
        tls: Credentials | TlsFiles | None = None,
        client_id: str = "",
    ) -> None:
        self._client_headers = headers_with(client_id)
        self._bootstrap = parse_bootstrap(bootstrap)
        self.identity = client_identity(tls)
        self._timeout_s = timeout_s
        self._view = ClusterView()
        self._channels = AddressChannels(self.identity)
        self._stubs: dict[str, BrokerServiceAsyncStub] = {}
        self.used_topics = UsedTopics()
        self._unknown = UnknownTopics()
        self._attempt = AttemptTimeout(_METADATA_S, METADATA_ATTEMPT_S_MAX)
        self._listeners: list[Callable[[], None]] = []
        self._updated = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._watch_address = ""
        self._rewatch = asyncio.Event()
        self._used: Counter[str] = Counter()
        self._warned_s = -math.inf
        self._closed = False
        self._heard_s = -math.inf
        """Time of the last answer of a broker of the known cluster."""
        self._others: dict[str, ClusterView] = {}
        """The last answer of addresses whose brokers are of another cluster."""
        self.other_services: set[str] = set()
        """Addresses that answered without BrokerService: they are not brokers; one may be the admin service."""

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find a broker that answers.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE, with the error of each address. Without retries: INVALID_CONFIG if
                every address answers and is not a broker; AUTHENTICATION_FAILED if each of them refuses the token.
        """
        limit_s = min(self._timeout_s, CONNECT_TIMEOUT_S)
        deadline_s, silence = time.monotonic() + limit_s, Silence(limit_s)
        backoff, refused = Backoff(), None
        while True:
            causes = await self._ask_any(timeout_s=deadline_s - time.monotonic())
            if causes is None:
                return
            error = no_answer(causes, self.other_services)
            if not error.retriable:
                raise error
            if error.code is ErrorCode.AUTHENTICATION_FAILED:
                refused = error  # a last round may be too short for some brokers
            pause_s = backoff.next_s()
            if time.monotonic() + pause_s >= deadline_s:
                raise refused or error
            silence.note(refused or error)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close the metadata stream and every channel."""
        self._closed = True
        tasks = [task for task in (self._refreshing, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._channels.close()

    def stub(self, address: str) -> BrokerServiceAsyncStub:
        """Return the stub of the broker at an address; raises CLIENT_CLOSED."""
        channel = self.channel(address)
        stub = self._stubs.get(address)
        if stub is None:
            stub = self._stubs[address] = cast("BrokerServiceAsyncStub", BrokerServiceStub(unary_calls(channel)))
        return stub

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return the channel to an address; raises CLIENT_CLOSED."""
        if self._closed:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "this client is closed")
        return self._channels.get(address)

    def used(self, address: str) -> None:
        """Count a use of that broker; the metadata stream prefers the least used one."""
        self._used[address] += 1

    # -- the view ------------------------------------------------------------------------------------------------------

    @property
    def headers(self) -> Headers:
        """Metadata of calls: the client id, for quotas, and the known cluster, since others refuse the calls."""
        return (*self._client_headers, *receiver_headers(self._view.cluster_id))

    @property
    def view(self) -> ClusterView:
        """The merged metadata of the cluster."""
        return self._view

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, on the event loop, after each change of the metadata."""
        self._listeners.append(listener)

    def topic_now(self, topic: str) -> TopicView | None:
        """Return the topic, if it is known and has no error."""
        found = self._view.topics.get(topic)
        return None if found is None or found.error is not None else found

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Return the known leader of a partition, if its address is known too."""
        topic = self.topic_now(partition.topic)
        return None if topic is None else leader_in(topic, partition.partition, self._view.brokers)

    async def topic(self, topic: str, *, timeout_s: float) -> TopicView:
        """Return a topic, from a broker if it is unknown; retries for a short time, in case the topic was just created.

        A topic that stayed unknown is remembered: further calls make one attempt or none (`unknown_topics`).

        Raises:
            TidemarkError: UNKNOWN_TOPIC, INVALID_TOPIC_NAME, BROKER_NOT_AVAILABLE; LEADER_NOT_AVAILABLE if brokers do
                not know the topic and have no contact with a controller.
            TypeError: `topic` is not a str.
        """
        if not isinstance(topic, str):
            raise TypeError(f"a topic is named by a str, not a {type(topic).__name__}")
        check_topic_name(topic)
        self.use(topic)
        started_s = time.monotonic()
        patience_s = TOPIC_PATIENCE_S
        if (found := self.topic_now(topic)) is None or not found.partitions:
            patience_s = self._unknown.patience_s(topic, TOPIC_PATIENCE_S, started_s)
        backoff = Backoff()
        while (found := self.topic_now(topic)) is None or not found.partitions:
            left_s = started_s + timeout_s - time.monotonic()
            causes = await self._ask_any((topic,), timeout_s=left_s)
            if (found := self.topic_now(topic)) is not None and found.partitions:
                break
            waited_s = time.monotonic() - started_s
            if causes is not None and waited_s >= timeout_s:
                raise none_answers(causes)
            error = self._error_of(topic)
            patient_s = patience_s if error.code is ErrorCode.UNKNOWN_TOPIC else TOPIC_PATIENCE_S
            if causes is None and waited_s >= self._patience_s(patient_s, timeout_s):
                raise await self._stayed_unknown(topic, error)
            await self.wait_for_update(backoff.next_s())
        return found

    def _patience_s(self, patience_s: float, timeout_s: float) -> float:
        """Time to retry a missing name; without a controller, brokers may not know what was created long before."""
        return timeout_s if hears_no_controller(self._view) else min(patience_s, timeout_s)

    def _error_of(self, topic: str) -> TidemarkError:
        view = self._view.topics.get(topic)
        return view.error if view is not None and view.error is not None else unknown_topic(topic)

    async def _stayed_unknown(self, topic: str, error: TidemarkError) -> TidemarkError:
        """Remember a topic that no broker knows. The metadata stream continues to watch for its creation."""
        if error.code is not ErrorCode.UNKNOWN_TOPIC:
            self.used_topics.discard(topic)
            return error
        if hears_no_controller(self._view):
            self.used_topics.discard(topic)
            return may_be_new(error)
        error = self._unknown.error(topic) or await self._with_suggestion(topic, error)
        for forgotten in self._unknown.add(topic, error, time.monotonic()):
            if isinstance(forgotten, str):
                self.used_topics.discard(forgotten)
        return copy(error)

    async def _with_suggestion(self, topic: str, error: TidemarkError) -> TidemarkError:
        """Suggest the name of a visible topic, if one is similar."""
        names = [name for name in await self._topic_names() if not name.startswith("__")]
        similar = nearest(topic, names) if len(names) <= _NAMES_AT_ONCE else await to_thread(nearest, topic, names)
        if similar is None:
            return error
        metadata = {**error.metadata, "did_you_mean": similar}
        return TidemarkError(error.code, f"{error.message}; did you mean {similar!r}?", metadata)

    async def _topic_names(self) -> list[str]:
        """List the topics that this client may see, as one broker knows them; none if that broker does not answer."""
        address = random.choice(self.addresses())
        try:
            request = pb.GetMetadataRequest(all_topics=True)
            response = await self.stub(address).GetMetadata(request, timeout=_NAMES_S, metadata=self.headers)
        except grpc.aio.AioRpcError as error:
            _log.debug("no names of topics: %s", from_rpc_error(error, address=address))
            return []
        return [topic.topic for topic in response.metadata.topics]

    def follow(self, topics: Iterable[str]) -> None:
        """Keep the metadata of these topics, existing or not, instead of the topics of the last call."""
        self.used_topics.followed = frozenset(topics)
        for topic in self.used_topics.followed:
            self.use(topic)

    def missing(self, topic: str) -> TidemarkError | None:
        """Return the error of a topic that brokers do not know; None for a known topic, and before the first answer."""
        view = self._view.topics.get(topic)
        if view is None or view.error is None:
            return None
        remembered = self._unknown.error(topic)
        return view.error if remembered is None or view.error.code is not remembered.code else remembered

    async def partition_count(self, topic: str, *, timeout_s: float, beyond: int = -1) -> int:
        """Return the number of partitions of a topic.

        Args:
            topic: name of the topic.
            timeout_s: time limit of the whole call, in seconds.
            beyond: if the topic has no partition with this index, retry for a short time, in case the partition was
                just added.

        Raises:
            TidemarkError: the errors of `topic`; BROKER_NOT_AVAILABLE if no broker answers about the partition
                `beyond`; LEADER_NOT_AVAILABLE if brokers know neither this partition nor a controller.
        """
        started_s = time.monotonic()
        count = (await self.topic(topic, timeout_s=timeout_s)).count
        if count > beyond:
            return count
        where = TopicPartition(topic, beyond)
        try:
            patience_s = self._unknown.patience_s(where, TOPIC_PATIENCE_S, started_s)
        except TidemarkError:
            return count
        backoff = Backoff()
        while count <= beyond:
            left_s = started_s + timeout_s - time.monotonic()
            causes = await self._ask_any((topic,), timeout_s=left_s)
            count = (await self.topic(topic, timeout_s=max(_ASK_S_MIN, left_s))).count
            waited_s = time.monotonic() - started_s
            if causes is not None and count <= beyond and waited_s >= timeout_s:
                raise none_answers(causes)
            if count <= beyond and causes is None and waited_s >= self._patience_s(patience_s, timeout_s):
                if hears_no_controller(self._view):
                    raise may_be_new(unknown_partition(*where, count))
                self._unknown.add(where, unknown_partition(*where, count), time.monotonic())
                break
            if count <= beyond:
                await self.wait_for_update(backoff.next_s())
        return count

    async def with_partitions(self, topic: str, indexes: Collection[int] | None, *, timeout_s: float) -> TopicView:
        """Return a topic with the partitions `indexes`, None: all; waits for partitions that were just added.

        Brokers learn the partitions of a large new topic in parts, and the metadata may have a part of them only.

        Raises:
            TidemarkError: the errors of `partition_count`; UNKNOWN_PARTITION; LEADER_NOT_AVAILABLE if the metadata does
                not have a partition in time.
        """
        until_s, backoff = time.monotonic() + timeout_s, Backoff()
        view = await self.topic(topic, timeout_s=timeout_s)
        if indexes and max(indexes) >= view.count:
            await self.partition_count(topic, timeout_s=timeout_s, beyond=max(indexes))
            view = await self.topic(topic, timeout_s=timeout_s)
        while missing := set(range(view.count) if indexes is None else indexes) - view.partitions.keys():
            left_s, where = until_s - time.monotonic(), TopicPartition(topic, min(missing))
            for index in missing:
                if not 0 <= index < view.count:
                    raise unknown_partition(topic, index, view.count)
            if left_s <= 0:
                raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"brokers do not know a leader of {where} yet")
            self.refresh()
            await self.wait_for_update(min(backoff.next_s(), left_s))
            view = await self.topic(topic, timeout_s=max(left_s, _ASK_S_MIN))
        return view

    async def leader_in_time(self, partition: TopicPartition, *, deadline_s: float) -> Leader:
        """Return the leader of a partition, waiting for an election if necessary.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE after the (monotonic) deadline.
        """
        backoff = Backoff()
        while True:
            left_s = deadline_s - time.monotonic()
            topic = await self.topic(partition.topic, timeout_s=max(left_s, 0.05))
            if partition.partition >= topic.count:
                raise unknown_partition(*partition, topic.count)
            found = self.leader(partition)
            if found is not None:
                return found
            if left_s <= 0:
                raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader that could be reached")
            self.refresh()
            await self.wait_for_update(min(backoff.next_s(), left_s))

    async def wait_for_update(self, timeout_s: float) -> None:
        """Return when the metadata changes, at the latest after `timeout_s`."""
        self._updated.clear()
        with contextlib.suppress(TimeoutError):
            async with timeout(timeout_s):
                await self._updated.wait()

    def note_refusal(self, partition: TopicPartition, error: TidemarkError) -> None:
        """After a refusal, use the leader that the refusal names, if its epoch is newer, and refresh the metadata.

        The refusal of a broker that is behind may be about an earlier topic of this name, whose epochs do not compare.
        """
        leader, epoch = error.metadata.get("leader", ""), error.metadata.get("leader_epoch", "")
        if leader.lstrip("-").isdecimal() and epoch.lstrip("-").isdecimal() and self._is_known(partition, error):
            self._note_leader(partition, BrokerId(int(leader)), LeaderEpoch(int(epoch)))
        self.refresh()

    def _is_known(self, partition: TopicPartition, error: TidemarkError) -> bool:
        """Whether the topic id and incarnation in a refusal are the known ones; brokers of 0.1.0 send none."""
        topic = self.topic_now(partition.topic)
        view = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or view is None:
            return False
        known, told = {"topic_id": topic.topic_id, "incarnation": view.incarnation}, error.metadata
        return all(told.get(name, value) == value for name, value in known.items())

    def refresh(self, *, avoid: str = "") -> None:
        """Start a request for the metadata of the used topics, preferably not to the broker at `avoid`."""
        if not self._closed and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh(avoid))

    def _note_leader(self, partition: TopicPartition, leader: BrokerId, epoch: LeaderEpoch) -> None:
        topic = self.topic_now(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or known is None or leader == NO_LEADER or epoch == NO_EPOCH or epoch <= known.leader_epoch:
            return
        partitions: dict[int, PartitionView] = dict(topic.partitions)
        partitions[partition.partition] = replace(known, leader=leader, leader_epoch=epoch)
        topics = {**self._view.topics, topic.topic: replace(topic, partitions=partitions)}
        self._view = replace(self._view, topics=topics)
        self._notify()

    def _merge(self, update: ClusterView) -> None:
        # A broker that has just started has no metadata, and lists no brokers, not even itself.
        if not update.brokers:
            return
        before, self._heard_s = self._view, time.monotonic()
        self._view = taken_over(before, update)
        if before.cluster_id not in ("", self._view.cluster_id):
            ids = self._view.cluster_id, before.cluster_id
            _log.warning("the brokers are those of another cluster now: %s, not %s", *ids)
            self._others.clear()
        if self._view != before:
            self._channels.note(self._view.cluster_id, self._view.brokers.values())
            self._notify()

    def _notify(self) -> None:
        self._updated.set()
        for listener in self._listeners:
            listener()

    # -- requests ------------------------------------------------------------------------------------------------------

    def addresses(self) -> tuple[str, ...]:
        """List the addresses of live brokers, then the bootstrap addresses."""
        live = [broker.address for broker in self._view.brokers.values()]
        return (*live, *(address for address in self._bootstrap if address not in live))

    async def _refresh(self, avoid: str) -> None:
        causes = await self._ask_any(avoid=avoid)
        if causes is not None:
            now_s = time.monotonic()
            rarely = logging.DEBUG if now_s < self._warned_s + _WARN_S else logging.WARNING
            self._warned_s = now_s if rarely == logging.WARNING else self._warned_s
            _log.log(rarely, "no broker answers: %s", _joined(causes))
            await asyncio.sleep(Backoff(0.1).next_s())

    async def _ask_any(
        self, topics: Collection[str] = (), *, timeout_s: float = math.inf, avoid: str = ""
    ) -> dict[str, TidemarkError] | None:
        """Ask brokers for these topics, or for all used topics, each broker a little after the one before, until one
        answers; otherwise return the error of each.

        All addresses are asked within `timeout_s`, and within the timeout of one attempt.
        """
        parts = in_requests(sorted(topics or self.used_topics))
        timeout_s = self._attempt.within(timeout_s)
        until_s = time.monotonic() + timeout_s
        addresses = list(self.addresses())
        pause_s = min(_NEXT_BROKER_S, timeout_s / (2 * len(addresses)))
        random.shuffle(addresses)
        addresses.sort(key=lambda address: address == avoid)
        causes: dict[str, TidemarkError] = {}
        pending: set[asyncio.Task[TidemarkError | None]] = set()
        try:
            while addresses or pending:
                if addresses:
                    address = addresses.pop(0)
                    left_s = max(_ASK_S_MIN, until_s - time.monotonic())
                    pending.add(asyncio.create_task(self._ask(address, parts, left_s), name=address))
                done, pending = await asyncio.wait(
                    pending, timeout=pause_s if addresses else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    cause = task.result()
                    if cause is None:
                        self._attempt.reset()
                        return None
                    causes[task.get_name()] = cause
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        is_silent = time.monotonic() - self._heard_s > _REPLACED_CLUSTER_S
        answers = {address: self._others.get(address) for address in causes}
        if (other := replacement(answers, self._bootstrap, is_silent=is_silent)) is not None:
            self._merge(other)
            return None
        self._attempt.note(causes.values())
        return causes

    async def look_again(self, *, timeout_s: float) -> None:
        """Ask a broker for newer metadata; without an answer in time the known metadata stay."""
        await self._ask_any(timeout_s=timeout_s)

    async def ask_in_turn(
        self, ask: Callable[[BrokerServiceAsyncStub, float], Awaitable[_T]], attempt: AttemptTimeout
    ) -> _T:
        """Return the first answer of a broker; each is asked when the one before has failed.

        Args:
            ask: calls a broker with a timeout in seconds.
            attempt: the timeout of each call.

        Raises:
            TidemarkError: the last failure; BROKER_NOT_AVAILABLE without any broker.
        """
        failures = [TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is known")]
        for address in self.addresses():
            try:
                answer = await ask(self.stub(address), attempt.within(math.inf))
            except grpc.RpcError as error:
                failures.append(from_rpc_error(error, address=address))
                continue
            attempt.reset()
            return answer
        attempt.note(failures)
        raise failures[-1]

    async def _ask(self, address: str, parts: Sequence[Sequence[str]], timeout_s: float) -> TidemarkError | None:
        """Ask a broker for each part of the topics; returns the first error."""
        for topics in parts:
            error = await self._ask_for(address, topics, timeout_s)
            if error is not None:
                return error
        return None

    async def _ask_for(self, address: str, topics: Sequence[str], timeout_s: float) -> TidemarkError | None:
        request = pb.GetMetadataRequest(topics=topics)
        try:
            response = await self.stub(address).GetMetadata(request, timeout=timeout_s, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            cause = from_rpc_error(error, address=address)
            if is_other_service(cause):
                self.other_services.add(address)
            return cause
        view = view_from_proto(response.metadata, shared=True)
        why = why_unusable(self._view, view)
        if view.brokers:
            self._note_other(address, view if why else None)
        if why:
            return TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{address}: {why}")
        self._merge(view)
        return None

    def _note_other(self, address: str, other: ClusterView | None) -> None:
        """Note the answer of a broker of another cluster; None: the broker is of this cluster."""
        if other is None:
            self._others.pop(address, None)
            return
        if address not in self._others:
            ids = address, other.cluster_id, self._view.cluster_id
            _log.error("%s is of cluster %s; this client uses cluster %s: is bootstrap correct?", *ids)
        self._others[address] = other

    # -- metadata stream -----------------------------------------------------------------------------------------------

    def use(self, topic: str) -> None:
        """Keep the metadata of the topic, until it was not used for `used_topics.IDLE_S`."""
        if not self.used_topics.use(topic, time.monotonic()):
            return
        self._rewatch.set()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        backoff = Backoff(0.05, 1.0)
        while True:
            self._watch_address = self._choose_watched()
            self._rewatch.clear()
            topics = sorted(self.used_topics)[:NAMED_MAX]
            watching = asyncio.create_task(self._watch_one(self._watch_address, topics, backoff))
            rewatch = asyncio.create_task(self._new_topics())
            try:
                await asyncio.wait({watching, rewatch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended = watching.done()
                for task in (watching, rewatch):
                    task.cancel()
                await asyncio.gather(watching, rewatch, return_exceptions=True)
            if ended:
                await asyncio.sleep(backoff.next_s())

    async def _new_topics(self) -> None:
        """Wait until new topics were gathered; meanwhile the stream of the others continues."""
        await self._rewatch.wait()
        await asyncio.sleep(min(len(self.used_topics) * _GATHER_S, _GATHER_S_MAX))

    async def _watch_one(self, address: str, topics: list[str], backoff: Backoff) -> None:
        call = self.stub(address).WatchMetadata(pb.WatchMetadataRequest(topics=topics))
        try:
            async for response in call:
                view = view_from_proto(response.metadata, shared=True)
                if view.brokers and why_unusable(self._view, view):
                    return
                backoff.reset()
                if self.used_topics.beyond(topics):  # the stream cannot state that other topics do not exist
                    view = replace(view, complete=False)
                self._merge(view)
        except grpc.aio.AioRpcError as error:
            _log.debug("metadata stream lost: %s", from_rpc_error(error, address=address))
        finally:
            call.cancel()
        self.refresh(avoid=address)

    def _choose_watched(self) -> str:
        """Choose one of the least used brokers, not the previous one if possible."""
        addresses = [address for address in self.addresses() if address not in self._others] or list(self.addresses())
        random.shuffle(addresses)
        return min(addresses, key=lambda address: (address == self._watch_address, self._used[address]))


def hears_no_controller(view: ClusterView) -> bool:
    """Whether the broker that answered last named no controller, so the broker may lack topics and partitions."""
    return view.controller_id == NO_LEADER


def may_be_new(error: TidemarkError) -> TidemarkError:
    """Make the error for a name that brokers without a controller call unknown."""
    sentence = f"no controller is active, and brokers may not know the newest topics: {error.message}"
    return TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, sentence, error.metadata)


def _joined(causes: dict[str, TidemarkError]) -> str:
    return "; ".join(sorted({cause.message for cause in causes.values()}))

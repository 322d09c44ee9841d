# SPDX-License-Identifier: Apache-2.0
"""The metadata of the cluster, and calls to brokers with retries and deadlines, without an event loop.

This works in a process that a batch engine has forked. A client on an event loop has `cluster.Cluster`.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeVar

import grpc

from tidemark.client.metadata.backoff import METADATA_ATTEMPT_S_MAX, AttemptTimeout, Backoff
from tidemark.client.metadata.bootstrap import Bootstrap, parse_bootstrap
from tidemark.client.metadata.cluster import (
    ON_ITS_WAY,
    TOPIC_PATIENCE_S,
    Leader,
    hears_no_controller,
    leader_in,
    may_be_new,
)
from tidemark.client.metadata.no_answer import is_other_service, no_answer
from tidemark.client.metadata.other_clusters import replacement, why_unusable
from tidemark.client.metadata.silence import Silence
from tidemark.client.metadata.tls import Credentials, client_identity
from tidemark.core.cluster_view import ClusterView, TopicView, taken_over
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError, unknown_partition, unknown_topic
from tidemark.rpc import errors
from tidemark.rpc.channel import blocking_channels
from tidemark.rpc.codecs.metadata import view_from_proto
from tidemark.rpc.quotas.client_id import headers_with
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.rpc.security.paths import TlsFiles
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

T = TypeVar("T")

CALL_S: Final = 5.0
_METADATA_S: Final = 2.0
"""Timeout of a metadata request, which any healthy broker answers immediately."""
_NO_ANSWER: Final = frozenset({ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.AUTHENTICATION_FAILED})


class BlockingCluster:
    """One client's metadata of the cluster, and its calls; safe for several threads.

    Args:
        bootstrap: addresses of any brokers; None: TIDEMARK_BOOTSTRAP.
        deadline_s: seconds after which `retrying` raises REQUEST_TIMED_OUT.
        connect_timeout_s: seconds after which it raises BROKER_NOT_AVAILABLE if no broker ever answered.
        tls: the TLS files, and a token if any; None: files and token of the environment, or plain text.
        client_id: the name that the client states, checked; "": no name.

    Attributes:
        view: the merged metadata.
        is_closed: whether the client is closed.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None,
        *,
        deadline_s: float,
        connect_timeout_s: float = math.inf,
        tls: Credentials | TlsFiles | None = None,
        client_id: str = "",
    ) -> None:
        self._client_headers = headers_with(client_id)
        self._bootstrap = parse_bootstrap(bootstrap)
        self._deadline_s = deadline_s
        self._connect_timeout_s = connect_timeout_s
        self._calls = _Calls()
        self._metadata_attempt = AttemptTimeout(_METADATA_S, METADATA_ATTEMPT_S_MAX)
        self.view = ClusterView()
        self._channels = blocking_channels(client_identity(tls))
        self.is_closed = False
        self._lock = threading.Lock()
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls of other threads end with CLIENT_CLOSED."""
        self.is_closed = True
        self._channels.close()

    # -- the view ------------------------------------------------------------------------------------------------------

    def ask_another(self) -> None:
        """Ask another broker for the next metadata, since one broker's metadata may be stale."""
        self._turn += 1

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicView]:
        """Return topics with all their partitions (None: all topics, some possibly in part).

        Raises:
            TidemarkError: UNKNOWN_TOPIC, INVALID_TOPIC_NAME; the errors of `retrying`.
        """
        for name in names or ():
            check_topic_name(name)

        def ask() -> dict[str, TopicView]:
            self.refresh(names)
            if names is None:
                return {name: self.known(name) for name in sorted(self.view.topics)}
            return {name: self.whole(name) for name in names}

        return self.retrying(ask)

    def known(self, topic: str) -> TopicView:
        """Return a topic of the view; raises UNKNOWN_TOPIC, or the error that brokers state for the topic."""
        found = self.view.topics.get(topic)
        if found is None:
            raise unknown_topic(topic)
        if found.error is not None:
            raise found.error
        return found

    def whole(self, topic: str) -> TopicView:
        """Return a topic; while brokers know a part of its partitions only, an error that is retried."""
        found = self.known(topic)
        if len(found.partitions) < found.count:
            known = f"{len(found.partitions)} of {found.count}"
            raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}: brokers know {known} partitions yet")
        return found

    def leader(self, topic: str, partition: int) -> Leader:
        """Return the leader; raises LEADER_NOT_AVAILABLE, UNKNOWN_PARTITION and the errors of `known`."""
        if topic not in self.view.topics:
            self.refresh([topic])
        found = self.known(topic)
        if partition not in found.partitions:
            raise unknown_partition(topic, partition, len(found.partitions))
        leader = leader_in(found, partition, self.view.brokers)
        if leader is None:
            raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return leader

    def refresh(self, names: Sequence[str] | None) -> None:
        """Ask the brokers in turn for these topics, None: all topics.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE, INVALID_CONFIG, AUTHENTICATION_FAILED, CLIENT_CLOSED.
        """
        request = pb.GetMetadataRequest(topics=names or (), all_topics=names is None)
        live = [broker.address for broker in self.view.brokers.values()]
        causes: dict[str, TidemarkError] = {}
        others: dict[str, ClusterView | None] = {}
        addresses = list(dict.fromkeys([*live, *self._bootstrap]))
        first = self._turn % len(addresses)
        for address in addresses[first:] + addresses[:first]:
            try:
                answer = self.call(address, _metadata_method, request, self._metadata_attempt)
                update = view_from_proto(answer.metadata)
            except TidemarkError as error:
                if error.code is ErrorCode.CLIENT_CLOSED:
                    raise
                causes[address] = error
                others[address] = None
                continue
            self._metadata_attempt.reset()
            if not (why := why_unusable(self.view, update)):
                self._take_over(update)
                return
            causes[address] = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{address}: {why}")
            others[address] = update if update.brokers else None
        if (other := replacement(others, self._bootstrap, is_silent=False)) is not None:
            self._take_over(other)
            return
        self._metadata_attempt.note(causes.values())
        raise no_answer(causes, {address for address, cause in causes.items() if is_other_service(cause)})

    def _take_over(self, update: ClusterView) -> None:
        with self._lock:
            self.view = view = taken_over(self.view, update)
        self._channels.note(view.cluster_id, view.brokers.values())

    # -- calls ---------------------------------------------------------------------------------------------------------

    @property
    def headers(self) -> Headers:
        """Metadata of calls: the client id, for quotas, and the known cluster, since others refuse the calls."""
        return (*self._client_headers, *receiver_headers(self.view.cluster_id))

    def retrying(self, ask: Callable[[], T], *, patience_s: float | None = None) -> T:
        """Repeat the request until it succeeds, is permanently refused, or its deadline passes.

        Args:
            ask: makes the request once.
            patience_s: seconds in which an unknown topic or partition may still become known; None: TOPIC_PATIENCE_S.

        Raises:
            TidemarkError: the refusal; REQUEST_TIMED_OUT at the deadline, with the last refusal; BROKER_NOT_AVAILABLE
                after `connect_timeout_s`.
        """
        backoff = Backoff()
        patience_s = TOPIC_PATIENCE_S if patience_s is None else patience_s
        started_s = time.monotonic()
        self._calls.begin(started_s + self._deadline_s, started_s + self._connect_timeout_s)
        silence = Silence(min(self._deadline_s, self._connect_timeout_s))
        missing: TidemarkError | None = None
        while True:
            try:
                return ask()
            except TidemarkError as caught:
                is_silent = caught.code in ON_ITS_WAY and hears_no_controller(self.view)
                error = may_be_new(caught) if is_silent else caught
                self._calls.attempt.note([error])
                again_s = time.monotonic() + (pause_s := backoff.next_s())
                in_time = again_s < self._calls.until_s
                if self._never_answered(error):
                    if again_s >= started_s + self._connect_timeout_s:
                        raise
                    silence.note(error)
                if not error.retriable or error.code is ErrorCode.CORRUPT_BATCH:  # no replica has a valid copy
                    if error.code not in ON_ITS_WAY or again_s >= started_s + patience_s or not in_time:
                        raise
                    missing = error
                    self.ask_another()
                elif in_time:
                    missing = None
                    if error.code is ErrorCode.LEADER_NOT_AVAILABLE:  # this is the answer of a broker without metadata
                        self.ask_another()
                elif missing is not None:  # the last attempts timed out after answers that the topic is missing
                    raise missing from None
                else:
                    raise TidemarkError(
                        ErrorCode.REQUEST_TIMED_OUT, f"not completed within its deadline; the last refusal: {error}"
                    ) from error
                time.sleep(pause_s)
                self._refresh_quietly()

    def begin(self, limit_s: float) -> None:
        """Begin calls of this thread without retries, `limit_s` seconds for all."""
        self._calls.begin(time.monotonic() + limit_s)

    def prolong(self, wait_s: float) -> None:
        """Move the deadline of this thread's calls, after a wait that a broker asked for."""
        self._calls.until_s += wait_s

    def call(
        self, address: str, method: Callable[[grpc.Channel], Any], request: Any, attempt: AttemptTimeout | None = None
    ) -> Any:
        """Call the method of a broker once; raises the error of the call."""
        try:
            # brokers of a cluster that replaces the known one answer only calls for metadata
            headers = self._client_headers if method is _metadata_method else self.headers
            with self.channel(address) as channel:
                return method(channel)(request, timeout=self.left_s(attempt), metadata=headers)
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address=address) from None

    @contextlib.contextmanager
    def channel(self, address: str) -> Iterator[grpc.Channel]:
        """Lend the channel to an address for calls; raises CLIENT_CLOSED."""
        try:
            with self._channels.lent(address) as channel:
                yield channel
        except (ValueError, grpc.RpcError):  # of gRPC for a channel that is closed, before a call or during one
            if self.is_closed:
                raise _closed() from None
            raise

    def left_s(self, attempt: AttemptTimeout | None = None) -> float:
        """Return the seconds of the next call of this thread, within the deadline of `retrying` or `begin`."""
        until_s = self._calls.until_s if self.view.cluster_id else min(self._calls.until_s, self._calls.connect_by_s)
        return (attempt or self._calls.attempt).within(until_s - time.monotonic())

    def _never_answered(self, error: TidemarkError) -> bool:
        return not self.view.cluster_id and error.code in _NO_ANSWER

    def _refresh_quietly(self) -> None:
        try:
            self.refresh(list(self.view.topics) or None)
        except TidemarkError:
            return  # the next attempt gets the same error


class _Calls(threading.local):
    """The calls of one thread: their deadline, and the timeout of each attempt."""

    def __init__(self) -> None:
        self.until_s = self.connect_by_s = 0.0
        self.attempt = AttemptTimeout(CALL_S)

    def begin(self, until_s: float, connect_by_s: float = math.inf) -> None:
        """Begin a series of attempts with a deadline, and an earlier one while no broker has ever answered."""
        self.until_s, self.connect_by_s = until_s, connect_by_s
        self.attempt.reset()


def _closed() -> TidemarkError:
    return TidemarkError(ErrorCode.CLIENT_CLOSED, "this reader is closed; open another one")


def _metadata_method(channel: grpc.Channel) -> Any:
    return BrokerServiceStub(channel).GetMetadata

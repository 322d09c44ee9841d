# SPDX-License-Identifier: Apache-2.0
"""The clients of a round: senders, readers, and a client that asks for end offsets; each writes its history."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from tidemark.client import AdminClient, Consumer, Producer
from tidemark.model import ErrorCode, TidemarkError

from tests.chaos.checks.history import Deleted, History, Outcome, Polled, Sent, ToldEnd
from tests.chaos.loads import Load

Client = TypeVar("Client", Producer, Consumer)

DRAIN_S = 45.0
"""Longest time without an acknowledgement at the end of a sender."""
_PATIENCE_MS = 600_000
"""Long enough that no batch expires: a flush would end at an expired batch as at an acknowledged one."""
_CLOSE_S = 5.0
_REQUEST_MS = 30_000
"""The clients' default: every process of a cluster is back after that time on an idle machine."""
_NONE_ANSWERS = frozenset({ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
_REFUSALS = frozenset(
    {ErrorCode.AUTHENTICATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
"""Errors that no client should get: clients keep their rights while certificates and tokens are renewed."""
_PAUSE_S = 0.1
"""Pause between two bursts of one sender, at slowness 1; a slow machine has fewer bursts."""
_UNDER_WAY_MAX = 2000
"""Records in flight of one sender, at slowness 1."""


class Sender:
    """An idempotent producer with acks=all that sends numbered values to the partitions in turn.

    The sender pauses while too many records are not acknowledged. With twenty computing processes on the machine, a
    cluster acknowledges some 250 records a second. With thousands of records in flight, each lookup and the end of the
    round would wait for half a minute.

    Args:
        count: how many partitions there are by now; None: as many as at first.
        slowness: of the machine.
        abandoned: once this is set, the sender waits for nothing.
        identity: arguments of the client that state its user.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        load: Load,
        count: Callable[[], int] | None,
        slowness: float,
        abandoned: threading.Event,
        identity: Mapping[str, Any],
    ) -> None:
        self.name = name
        self._identity = identity
        self._slowness = slowness
        self._abandoned = abandoned
        self._bootstrap = bootstrap
        self._load = load
        self._count = count or (lambda: load.partitions)
        self._handles: list[tuple[str, str, int, Any]] = []
        self._refused_s: dict[int, float] = {}
        """The first refusal of each partition that was unknown."""

    def send_until(self, ended: threading.Event, history: History) -> None:
        """Send a steady load; then wait for the records in flight, and record all outcomes."""
        load, number = self._load, 0
        patience_ms = int(load.patience_ms * self._slowness) or _PATIENCE_MS
        settings: dict[str, Any] = {"acks": "all", "batch_bytes": 4096, "delivery_timeout_ms": patience_ms}
        settings |= {"request_timeout_ms": request_ms(self._slowness), **self._identity}
        try:
            begun = once_answered(lambda: Producer(self._bootstrap, **settings), DRAIN_S * self._slowness)
        except TidemarkError as error:
            history.add_failure(f"{self.name} could not begin: {error}")
            return
        with begun as producer:
            try:
                while not ended.is_set():
                    if self._under_way(producer) < _UNDER_WAY_MAX / self._slowness**3:
                        for _ in range(load.burst):
                            self._send(producer, number)
                            number += 1
                    ended.wait(_PAUSE_S * self._slowness**2)
                if not self._abandoned.is_set():
                    self._drain(producer, history)
            except TidemarkError as error:
                history.add_failure(f"{self.name} could not continue: {error}")
            finally:
                history.sent += [self._known(history, *sent) for sent in self._handles]
                producer.close(_CLOSE_S)

    def _under_way(self, producer: Producer) -> int:
        metrics = producer.metrics()
        return len(self._handles) - metrics.acknowledged_records - metrics.failed_records

    def _send(self, producer: Producer, number: int) -> None:
        load, value, partition = self._load, f"{self.name}:{number}", number % self._count()
        key = f"k{number * number % load.keys}" if load.keys else ""
        try:
            handle = producer.send(load.topic, value.encode(), key=key.encode() or None, partition=partition)
        except TidemarkError as error:
            if not load.patience_ms and not self._is_added(partition, error):
                raise
            return  # the record was in no batch
        self._handles.append((value, key, partition, handle))

    def _is_added(self, partition: int, error: TidemarkError) -> bool:
        """Whether brokers may not know an unknown partition yet; a drain bounds that time."""
        if error.code is not ErrorCode.UNKNOWN_PARTITION or not self._load.grows_to:
            return False
        now_s = time.monotonic()
        return now_s - self._refused_s.setdefault(partition, now_s) < DRAIN_S * self._slowness

    def _drain(self, producer: Producer, history: History) -> None:
        """Wait for the acknowledgements as long as new ones arrive in each bounded wait."""
        before, error = -1, None
        while (acknowledged := producer.metrics().acknowledged_records) > before:
            before = acknowledged
            try:
                producer.flush(DRAIN_S * self._slowness)
            except TidemarkError as failure:
                error = failure
            else:
                return
        unknown = Counter(where for _, _, where, handle in self._handles if not handle.done())
        history.add_failure(f"{self.name} could not deliver its records: {error}: {dict(unknown)}")

    def _known(self, history: History, value: str, key: str, partition: int, handle: Any) -> Sent:
        try:
            told = handle.result(0.0)
        except TidemarkError as error:
            if error.code in _REFUSALS:
                history.add_failure(f"{self.name} was refused: {error}")
            failed = error.metadata.get("in_doubt") == "False"
            return Sent(value, self.name, partition, Outcome.FAILED if failed else Outcome.UNKNOWN, key=key)
        return Sent(value, self.name, partition, Outcome.ACKNOWLEDGED, told.offset, key)


def request_ms(slowness: float) -> int:
    """The `request_timeout_ms` of a client."""
    return round(_REQUEST_MS * slowness)


def once_answered(begin: Callable[[], Client], patience_s: float) -> Client:
    """Repeat a call while no broker answers, because all brokers may be down."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return begin()
        except TidemarkError as error:
            if error.code not in _NONE_ANSWERS or time.monotonic() > deadline_s:
                raise


def read_until(
    name: str,
    bootstrap: str,
    load: Load,
    at_end: Callable[[dict[int, int]], bool],
    history: History,
    slowness: float = 1.0,
) -> None:
    """Read everything from the beginning until `at_end` accepts the positions; skip records deleted from the front."""
    positions: dict[int, int] = {}
    reaction = "earliest" if load.shrinks else "fail"
    try:
        begin = partial(Consumer, bootstrap, request_timeout_ms=request_ms(slowness), out_of_range=reaction)
        with once_answered(begin, DRAIN_S * slowness) as consumer:
            consumer.assign(load.topic)
            while not at_end(positions):
                try:
                    batch = consumer.poll(0.2)
                except TidemarkError as error:
                    if error.code is not ErrorCode.REQUEST_TIMED_OUT:  # the thread of all clients here is late
                        raise
                    continue
                if batch is None:
                    continue
                rows = batch.rows.select(["offset", "value"]).to_pylist()
                history.add_polled(
                    [Polled(name, batch.partition, row["offset"], row["value"].decode()) for row in rows]
                )
                positions[batch.partition] = rows[-1]["offset"] + 1
    except TidemarkError as error:
        history.add_failure(f"{name} gave up at {positions}: {error}")


def delete_until(admin: str, load: Load, ended: threading.Event, seed: int, history: History) -> None:
    """Delete records at the start of a partition from time to time.

    A refused or unanswered deletion may have been applied.
    """
    chance = random.Random(seed)
    with AdminClient(admin=admin, timeout_s=5.0) as client:
        while not ended.wait(chance.uniform(0.5, 3.0)):
            partition = chance.randrange(load.partitions)
            try:
                told = client.delete_records(load.topic, partition, -1)
            except TidemarkError:
                continue
            if not told.behind:
                history.deleted.append(Deleted(partition, told.low_watermark, time.monotonic()))


def ask_ends_until(bootstrap: str, topic: str, partitions: int, ended: threading.Event, history: History) -> None:
    """Request the end offsets of the partitions repeatedly; a late answer is not a finding."""
    while not ended.is_set():
        try:
            with Consumer(bootstrap, request_timeout_ms=3000) as consumer:
                while not ended.wait(0.05):
                    for partition in range(partitions):
                        _ask_end(consumer, topic, partition, history)
        except TidemarkError as error:
            if error.code not in _NONE_ANSWERS:
                raise


def _ask_end(consumer: Consumer, topic: str, partition: int, history: History) -> None:
    asked_s = time.monotonic()
    try:
        ends = consumer.end_offsets([(topic, partition)])
    except TidemarkError:
        return
    for where, end in ends.items():
        history.add_end(ToldEnd(where.partition, end, asked_s, time.monotonic()))

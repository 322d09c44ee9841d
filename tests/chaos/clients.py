"""The clients of a round: senders, readers, and one who asks for ends; each writes down what it did and saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidemark.client import Consumer, Producer, SendHandle
from tidemark.model import TidemarkError

from tests.chaos.history import History, Outcome, Polled, Sent, ToldEnd

DRAIN_S = 90.0
_BURST = 40
_PAUSE_S = 0.02


class Sender:
    """An idempotent producer with acks=all that sends numbered values to the partitions in turn."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._handles: list[tuple[str, int, SendHandle]] = []

    def send_until(self, ended: threading.Event, history: History) -> None:
        """A steady load; then waits for what is under way and writes everything down."""
        with Producer(self._bootstrap, acks="all", batch_bytes=4096) as producer:
            number = 0
            while not ended.is_set():
                for _ in range(_BURST):
                    value = f"{self.name}:{number}"
                    partition = number % self._partitions
                    handle = producer.send(self._topic, value.encode(), partition=partition)
                    self._handles.append((value, partition, handle))
                    number += 1
                ended.wait(_PAUSE_S)
            try:
                producer.flush(DRAIN_S)
            except TidemarkError as error:
                history.add_failure(f"{self.name} could not deliver what it had sent: {error}")
            history.sent += [self._known(*sent) for sent in self._handles]

    def _known(self, value: str, partition: int, handle: SendHandle) -> Sent:
        try:
            told = handle.result(0.0)
        except (TidemarkError, TimeoutError):
            return Sent(value, self.name, partition, Outcome.UNKNOWN)
        return Sent(value, self.name, partition, Outcome.ACKNOWLEDGED, told.offset)


def read_until(
    name: str, bootstrap: str, topic: str, at_end: Callable[[dict[int, int]], bool], history: History
) -> None:
    """Read everything from the beginning, until `at_end` likes the positions."""
    positions: dict[int, int] = {}
    try:
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic)
            while not at_end(positions):
                batch = consumer.poll(0.2)
                if batch is None:
                    continue
                rows = batch.rows.select(["offset", "value"]).to_pylist()
                history.add_polled(
                    [Polled(name, batch.partition, row["offset"], row["value"].decode()) for row in rows]
                )
                positions[batch.partition] = rows[-1]["offset"] + 1
    except TidemarkError as error:
        history.add_failure(f"{name} gave up at {positions}: {error}")


def ask_ends_until(bootstrap: str, topic: str, partitions: int, ended: threading.Event, history: History) -> None:
    """Ask where the partitions end, again and again; what cannot be answered in time is nobody's fault."""
    with Consumer(bootstrap, request_timeout_ms=3000) as consumer:
        while not ended.wait(0.05):
            for partition in range(partitions):
                asked_s = time.monotonic()
                try:
                    ends = consumer.end_offsets([(topic, partition)])
                except TidemarkError:
                    continue
                for where, end in ends.items():
                    history.add_end(ToldEnd(where.partition, end, asked_s, time.monotonic()))

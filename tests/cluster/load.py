# SPDX-License-Identifier: Apache-2.0
"""Runs inside a pod: producers record every acknowledgement until a file appears; then a consumer checks each record.

    python load.py TOPIC STOP_FILE [PRODUCERS]

Each producer sends single records to the topic's partitions in turn and waits for each: its longest wait is its longest
pause. Prints "loading" once every producer has had an answer, and at the end one line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tidemark.client import AdminClient, Consumer, Producer, TidemarkError, TopicPartition

_INTERVAL_S = 0.02
_DELIVERY_MS = 60_000
_ASSIGN_S = 120.0
_QUIET_S = 20.0
"""A consumer without a record for this time fails."""


@dataclass
class Account:
    """Acknowledgements and waits of a producer."""

    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    waits: list[tuple[float, str, int]] = field(default_factory=list)
    """The longest waits: seconds, start time, partition."""

    def waited(self, seconds: float, partition: int) -> None:
        """Keep the ten longest waits."""
        began = datetime.now(UTC).timestamp() - seconds
        self.waits.append((round(seconds, 3), datetime.fromtimestamp(began, UTC).strftime("%H:%M:%S.%f"), partition))
        self.waits = sorted(self.waits, reverse=True)[:10]


def produce(topic: str, partitions: list[int], name: str, account: Account, stop: threading.Event) -> None:
    """Send and wait, until the stop is requested."""
    with Producer(delivery_timeout_ms=_DELIVERY_MS) as producer:
        number = 0
        while not stop.wait(_INTERVAL_S):
            partition = partitions[number % len(partitions)]
            value = f"{name}-{number}".encode()
            number += 1
            begun_s = time.monotonic()
            first = number == 1  # this wait includes the connection
            try:
                where = producer.send(topic, value, partition=partition).result()
            except TidemarkError as error:
                account.failed.append(f"{error.code.name}: {error.message}")
            else:
                account.acknowledged[(where.partition, where.offset)] = value
            if not first:
                account.waited(time.monotonic() - begun_s, partition)


def assign(consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Assign all partitions; repeated on a machine so busy that a broker does not answer in time."""
    deadline_s = time.monotonic() + _ASSIGN_S
    while True:
        try:
            return list(consumer.assign(topic))
        except TidemarkError as error:
            if not error.retriable or time.monotonic() > deadline_s:
                raise


def lost(topic: str, acknowledged: dict[tuple[int, int], bytes]) -> tuple[int, list[str]]:
    """Number of all records, and the acknowledged records that are missing at their offset."""
    missing = dict(acknowledged)
    read = 0
    with Consumer() as consumer:
        assigned = assign(consumer, topic)
        ends = consumer.end_offsets()
        behind = {where.partition: ends[where] for where in assigned if ends[where] > 0}
        quiet_since_s = time.monotonic()
        while behind and time.monotonic() - quiet_since_s < _QUIET_S:
            batch = consumer.poll(1.0)
            if batch is None:
                continue
            quiet_since_s = time.monotonic()
            read += batch.rows.num_rows
            columns = batch.rows.to_pydict()
            for offset, value in zip(columns["offset"], columns["value"], strict=True):
                if missing.get((batch.partition, offset)) == value:
                    del missing[(batch.partition, offset)]
            if columns["offset"][-1] + 1 >= behind.get(batch.partition, sys.maxsize):
                del behind[batch.partition]
    return read, [f"{partition}@{offset}: {value!r}" for (partition, offset), value in missing.items()]


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(topic: str, stop_file: Path, producers: int) -> None:
    """Run the load, stop, check, report. The client's log is load.log in the directory of the stop file."""
    log = stop_file.with_name("load.log")
    logging.basicConfig(filename=log, level=logging.DEBUG, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    with AdminClient() as admin:
        (view,) = admin.describe_topics([topic])
    count = len(view.partitions)
    stop = threading.Event()
    accounts = [Account() for _ in range(producers)]
    threads = [
        threading.Thread(
            target=produce, args=(topic, list(range(number, count, producers)), f"p{number}", account, stop)
        )
        for number, account in enumerate(accounts)
    ]
    begun_s = time.monotonic()
    for thread in threads:
        thread.start()
    while not all(account.acknowledged or account.failed for account in accounts):
        time.sleep(0.1)
    say("loading")
    while not stop_file.exists():
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun_s
    acknowledged = {where: value for account in accounts for where, value in account.acknowledged.items()}
    read, missing = lost(topic, acknowledged)
    report = {
        "acknowledged": sum(len(account.acknowledged) for account in accounts),
        "distinct": len(acknowledged),
        "failed": [failure for account in accounts for failure in account.failed][:10],
        "seconds": round(seconds, 1),
        "longest_wait_s": max(wait[0] for account in accounts for wait in account.waits),
        "longest_waits": sorted((wait for account in accounts for wait in account.waits), reverse=True)[:10],
        "read": read,
        "lost": len(missing),
        "lost_examples": missing[:10],
    }
    say(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 6)

# SPDX-License-Identifier: Apache-2.0
"""`tidemark log verify` while brokers run, and `tidemark replicas verify` on valid and forged replicas."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidemark.client import Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.record.checks import check_batches
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, parse_envelope, seal

from tests.integration.cli.test_cli import Ended, refused, succeeds, tidemark
from tests.integration.harness.waiting import wait_for

RECORDS = 4000
PATIENCE_S = 30.0
CONFIGS = ("--config", "segment.bytes=1048576", "--config", "min.insync.replicas=2")


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of three brokers of these tests' own."""
    settings = {"broker": {"log.cleaner.backoff.ms": "100"}}
    with LocalCluster(tmp_path_factory.mktemp("hurt"), settings=settings) as started:
        yield started


def directory(cluster: LocalCluster, broker_id: int) -> Path:
    return cluster.directory / broker_name(broker_id)


def fill(cluster: LocalCluster, topic: str, count: int) -> None:
    with Producer(cluster.bootstrap, acks="all", linger_ms=1) as producer:
        for number in range(count):
            producer.send(topic, b"%06d" % number + b"x" * 1000, partition=number % 2)
        producer.flush()


def doctor(segment: Path) -> int:
    """Change a value in the middle of a segment, with CRCs that are right; returns the batch's offset."""
    batches = check_batches(segment.read_bytes())
    number = len(batches) // 2
    envelope, data = batches[number]
    payload = data[ENVELOPE_BYTES:]
    assert payload.count(b"xxxxxxxx")
    changed = seal(envelope, payload.replace(b"xxxxxxxx", b"xxxxoxxx", 1))
    forged = [*batches[:number], Batch(parse_envelope(changed), changed), *batches[number + 1 :]]
    segment.write_bytes(b"".join(batch.data for batch in forged))
    return envelope.base_offset


def test_the_directories_of_running_brokers_are_found_good_while_they_are_written(hurt: LocalCluster) -> None:
    succeeds(hurt, "topic", "create", "busy", "-p", "2", "-r", "3", *CONFIGS)
    writing = threading.Thread(target=fill, args=(hurt, "busy", RECORDS))
    writing.start()
    directories = [str(directory(hurt, broker_id)) for broker_id in range(3)]
    looks: list[dict[str, Any]] = []
    while writing.is_alive() or not looks:
        looks.append(json.loads(succeeds(hurt, "log", "verify", *directories, "--json", "--deep")))
    writing.join()
    looks.append(json.loads(succeeds(hurt, "log", "verify", *directories, "--json")))
    assert [look["error_count"] for look in looks] == [0] * len(looks)
    held = [one["held"] for one in looks[-1]["directories"]]
    assert held == [True] * 3
    records = [
        sum(replica["records"] for replica in one["replicas"] if replica["topic"] == "busy")
        for one in looks[-1]["directories"]
    ]
    assert records == [RECORDS] * 3
    dumped = succeeds(
        hurt, "log", "dump", directories[0], "busy-1", "--records", "--from", "10", "--to", "11", "--json"
    )
    assert [json.loads(line)["offset"] for line in dumped.splitlines()] == [10, 11]


def test_equal_replicas_are_reported_equal_and_a_modified_one_is_found(hurt: LocalCluster) -> None:
    succeeds(hurt, "topic", "create", "pairs", "-p", "2", "-r", "3", *CONFIGS)
    fill(hurt, "pairs", 1000)
    same = [json.loads(line) for line in succeeds(hurt, "replicas", "verify", "-t", "pairs", "--json").splitlines()]
    assert [(one["end_offset"], one["differences"], one["away"]) for one in same] == [(500, [], [])] * 2
    assert all(sorted(one["compared"]) == [0, 1, 2] for one in same)
    (described,) = json.loads(succeeds(hurt, "topic", "describe", "pairs", "-o", "json"))
    follower = next(
        broker for broker in described["partitions"][0]["replicas"] if broker != described["partitions"][0]["leader"]
    )
    replica = directory(hurt, follower) / "pairs-0"
    hurt.terminate(broker_name(follower))
    offset = doctor(sorted(replica.glob("*.log"))[0])
    out = succeeds(hurt, "replicas", "verify", "-t", "pairs", "--partition", "0")
    assert f"broker {follower} is unavailable" in out
    hurt.restart(broker_name(follower))
    succeeds(hurt, "log", "verify", str(replica))
    looks: list[Ended] = []

    def all_brokers_take_part() -> bool:
        """A new broker counts as down until the other brokers know it, and until it knows its replicas."""
        looks.append(tidemark(hurt, "replicas", "verify", "-t", "pairs", "--json"))
        told = [json.loads(line) for line in looks[-1].out.splitlines()]
        return len(told) == 2 and not any(one["away"] or one["behind"] for one in told)

    wait_for(all_brokers_take_part, "all replicas are compared")
    ended = looks[-1]
    refused(ended, "LOG_DIVERGED")
    first, second = [json.loads(line) for line in ended.out.splitlines()]
    (difference,) = first["differences"]
    assert (difference["offset"], follower in difference["brokers"], second["differences"]) == (offset, True, [])
    ended = tidemark(hurt, "replicas", "verify", "-t", "pairs", "--partition", "0", "--bytes")
    refused(ended, "LOG_DIVERGED")
    assert ended.out.splitlines()[0].startswith(f"error: pairs-0 offset {offset}: brokers ")
    assert ended.out.splitlines()[1].startswith("  next: ")
    follow_the_advice(hurt, follower, replica)


def follow_the_advice(cluster: LocalCluster, broker_id: int, replica: Path) -> None:
    """The replica's directory is deleted.

    The broker fetches the complete log again, and is outside the ISR until then.
    """
    cluster.terminate(broker_name(broker_id))
    shutil.rmtree(replica)
    cluster.restart(broker_name(broker_id))
    until_s = time.monotonic() + PATIENCE_S
    while True:
        told = json.loads(succeeds(cluster, "replicas", "verify", "-t", "pairs", "--partition", "0", "--json"))
        (described,) = json.loads(succeeds(cluster, "topic", "describe", "pairs", "-o", "json"))
        if told["compared"] and not told["behind"] and not told["away"]:
            break
        assert broker_id not in described["partitions"][0]["isr"] or time.monotonic() < until_s
        assert time.monotonic() < until_s, told
    assert sorted(told["compared"]) == [0, 1, 2]
    succeeds(cluster, "log", "verify", str(replica))


def test_replicas_of_a_compacted_topic_are_equal_after_any_cleaning(hurt: LocalCluster) -> None:
    policy = ("cleanup.policy=compact", "segment.bytes=20000", "min.cleanable.dirty.ratio=0.01")
    flags = [text for setting in policy for text in ("--config", setting)]
    succeeds(hurt, "topic", "create", "prices", "-p", "1", "-r", "3", *flags)
    looks: list[dict[str, Any]] = []
    with Producer(hurt.bootstrap, acks="all", linger_ms=0) as producer:
        while not looks or looks[-1]["end_offset"] < 4000:
            for number in range(500):
                producer.send("prices", b"%d" % number + b"y" * 50, key=b"%d" % (number % 40), partition=0)
            producer.flush()
            looks.append(json.loads(succeeds(hurt, "replicas", "verify", "-t", "prices", "--json")))
    directories = [str(directory(hurt, broker_id) / "prices-0") for broker_id in range(3)]
    until_s = time.monotonic() + PATIENCE_S
    while True:
        verified = json.loads(succeeds(hurt, "log", "verify", *directories, "--json", "--deep"))
        records = [one["replicas"][0]["records"] for one in verified["directories"]]
        looks.append(json.loads(succeeds(hurt, "replicas", "verify", "-t", "prices", "--json", "--bytes")))
        if max(records) < 2000 and looks[-1]["holes"] == []:
            break  # every cleaner is through
        assert time.monotonic() < until_s, (records, looks[-1]["holes"])
    assert [look["differences"] for look in looks] == [[]] * len(looks)
    assert looks[-1]["batches"] < looks[-1]["end_offset"]


def test_a_missing_log_or_replica_is_refused_in_one_sentence(hurt: LocalCluster) -> None:
    refused(tidemark(hurt, "replicas", "verify", "-t", "not-there"), "UNKNOWN_TOPIC")
    refused(tidemark(hurt, "log", "verify", "/not/there"), "INVALID_REQUEST")
    assert tidemark(hurt, "topic", "create", "one", "-p", "1", "-r", "1").status == 0
    refused(tidemark(hurt, "replicas", "verify", "-t", "one", "--partition", "7"), "UNKNOWN_PARTITION")
    assert "no two replicas" in succeeds(hurt, "replicas", "verify", "-t", "one")

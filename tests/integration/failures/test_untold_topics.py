# SPDX-License-Identifier: Apache-2.0
"""The active controller is killed when the states of a new topic are written, and before every broker has its metadata.

Brokers receive the topic from the next controller, which takes over after the session of the first one has expired.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.cluster import TOPIC_PATIENCE_S
from tidemark.local.cluster import LocalCluster

from tests.integration.harness import warm_command

SOON_S = 40.0
SESSION_MS = 9000
TOPIC, PARTITIONS = "orders", 4
_HOOK = """
import os, signal, sys

if "tidemark.controller" in sys.orig_argv:
    from tidemark.core.controller.command_builder import CommandBuilder

    build_all, heard = CommandBuilder.build_all, []

    def build_then_die(self, now_ms):
        order = os.environ["DIES"]
        if not os.path.exists(order):
            return build_all(self, now_ms)
        with open(order) as file:
            topic, told = file.read().split()
        commands = self._ctx.commands
        if any(one.topic == topic for pending in commands.values() for one in pending.metadata):
            heard.append(topic)
        if heard and (told == "none" or commands[int(told)].update_metadata.request_id is None and len(heard) > 1):
            os.unlink(order)
            os.kill(os.getpid(), signal.SIGKILL)
        effects = build_all(self, now_ms)
        if heard:
            heard.append(topic)
            return [effect for effect in effects if getattr(effect, "broker", int(told)) == int(told)]
        return effects

    CommandBuilder.build_all = build_then_die
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    (tmp_path / "sitecustomize.py").write_text(_HOOK)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "DIES": str(tmp_path / "dies")}
    settings = {"controller": {"zookeeper.session.timeout.ms": str(SESSION_MS)}}
    with LocalCluster(tmp_path, brokers=2, controllers=2, environment=environment, settings=settings) as started:
        yield started


def produced(bootstrap: str) -> list[int]:
    with Producer(bootstrap) as producer:
        sent = [producer.send(TOPIC, b"%d" % index, partition=index) for index in range(PARTITIONS)]
        return sorted(one.result(SOON_S).partition for one in sent)


def assigned(bootstrap: str) -> list[int]:
    with Consumer(bootstrap) as consumer:
        consumer.assign(TOPIC, start="earliest")
        return consumed(consumer)


def subscribed(bootstrap: str) -> list[int]:
    with Consumer(bootstrap, group="readers", offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        found = consumed(consumer)
        consumer.commit()
        return found


def committed(bootstrap: str) -> list[int]:
    """Commits without members, to groups of every coordinator."""
    for number in range(6):
        with Consumer(bootstrap, group=f"jobs-{number}") as consumer:
            for where in consumer.assign(TOPIC, range(PARTITIONS), start=0):
                consumer.commit({where: 0})
            assert set(consumer.committed()) == set(consumer.assignment)
    return list(range(PARTITIONS))


def consumed(consumer: Consumer) -> list[int]:
    """Read until a record of each partition has arrived."""
    found: set[int] = set()
    for _ in range(int(SOON_S)):
        found.update(record.partition for record in consumer.poll_records(1.0))
        if len(found) == PARTITIONS:
            break
    return sorted(found)


def ranges(bootstrap: str) -> list[int]:
    with RangeReader(bootstrap, deadline_s=SOON_S) as reader:
        return sorted(reader.bounds(TOPIC, range(PARTITIONS)))


def command(bootstrap: str) -> list[int]:
    lines = "".join(f"{index}\n" for index in range(PARTITIONS))
    environment = {**os.environ, "TIDEMARK_BOOTSTRAP": bootstrap}
    ended = warm_command.run(["produce", TOPIC], stdin=lines, environment=environment, timeout_s=SOON_S)
    assert ended.status == 0, ended
    return list(range(PARTITIONS))


@pytest.mark.parametrize(("before", "told"), [(0, "none"), (1, "1")])
def test_every_client_uses_a_topic_whose_controller_died(cluster: LocalCluster, told: str, before: int) -> None:
    """Every client succeeds without an error: no client waits for less time than the failover of the controller."""
    assert SESSION_MS / 1000 > TOPIC_PATIENCE_S
    order = cluster.directory / "dies"
    with Consumer(cluster.bootstrap, group="first") as consumer:
        consumer.committed()  # creates the topic of the offsets
    with AdminClient(cluster.admin_address) as admin:
        if before:
            admin.create_topic(TOPIC, partitions=before, replication_factor=1)
        order.write_text(f"{TOPIC} {told}")
        if before:
            admin.create_partitions(TOPIC, PARTITIONS)
        else:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        assert {one.leader for one in admin.describe_topics([TOPIC])[0].partitions.values()} == {0, 1}
    uses: list[Callable[[str], list[int]]] = [produced, subscribed, committed, ranges, command]
    uses += [] if before else [assigned]  # which reads the partitions that there are now
    with ThreadPoolExecutor(len(uses)) as pool:
        results = [pool.submit(use, cluster.bootstrap) for use in uses]
        ended = {use.__name__: one.exception() or one.result() for use, one in zip(uses, results, strict=True)}
    assert not order.exists()
    assert ended == {use.__name__: list(range(PARTITIONS)) for use in uses}

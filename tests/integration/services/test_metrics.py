# SPDX-License-Identifier: Apache-2.0
"""A real cluster with traffic, scraped: a killed follower, a moved partition, groups; and the page of metrics."""

from __future__ import annotations

import gzip
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.local.cluster import ADMIN, CONSOLE, LocalCluster, broker_name, controller_name
from tidemark.model import BrokerId, PartitionReassignment, TopicPartition

from tests.integration.harness.waiting import wait_for
from tests.unit.broker.scraped import scraped

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
TOPIC = "seen"
PARTITIONS = 6
RECORDS = 300
WAITS = "tidemark_event_loop_waits_total", ""
WAKE_UPS_PER_S_MAX = 60
WAKE_UPS_OF_ADMIN_PER_S_MAX = 20
WINDOW_S = 1.0
WINDOWS = 10
Scrape = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"broker": {"replica.lag.time.max.ms": "4000"}}
    with LocalCluster(tmp_path_factory.mktemp("metrics"), settings=settings, console=True) as started:
        with AdminClient(started.admin_address) as admin, Producer(started.bootstrap) as producer:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
            for number in range(RECORDS):
                producer.send(TOPIC, b"x" * 100, key=str(number).encode())
            producer.flush(60)
        yield started


def scrape(cluster: LocalCluster, name: str) -> Scrape:
    request = urllib.request.Request(
        f"http://{cluster.metrics_address(name)}/metrics", headers={"Accept-Encoding": "gzip"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return scraped(gzip.decompress(answer.read()))


def brokers(cluster: LocalCluster, *broker_ids: int) -> list[Scrape]:
    return [scrape(cluster, broker_name(one)) for one in broker_ids or (0, 1, 2)]


def controllers(cluster: LocalCluster) -> list[Scrape]:
    return [scrape(cluster, controller_name(one)) for one in range(2)]


def total(found: list[Scrape], name: str, labels: str = "") -> float:
    """Sum over processes, of all series with these labels."""
    return sum(value for one in found for (of, has), value in one.items() if of == name and labels in has)


def test_every_service_counts_produced_and_consumed_records(cluster: LocalCluster) -> None:
    with Consumer(cluster.bootstrap, group="readers") as consumer:
        consumer.subscribe([TOPIC])
        for _ in range(RECORDS // 2):
            next(consumer)
        consumer.commit()
        wait_for(
            lambda: total(brokers(cluster), "tidemark_group_member_count", "group=readers") == 1,
            "the coordinator reports the group",
        )
        found = brokers(cluster)
        assert total(found, "tidemark_broker_connections") >= 3
        assert total(found, "tidemark_broker_streams", "kind=replica") == 6
    assert total(found, "tidemark_broker_produced_records_total") == RECORDS
    assert total(found, "tidemark_topic_produced_records_total", f"topic={TOPIC}") == RECORDS
    assert total(found, "tidemark_topic_fetched_bytes_total", f"topic={TOPIC}") > 50 * RECORDS
    assert total(found, "tidemark_broker_produce_requests_total") == total(
        found, "tidemark_broker_produce_seconds_count"
    )
    assert total(found, "tidemark_broker_fetch_seconds_count", "kind=consumer") > 0
    assert total(found, "tidemark_broker_fetch_seconds_count", "kind=follower") > 0
    out = total(found, "tidemark_broker_replicated_bytes_total")
    assert out == total(found, "tidemark_broker_replicated_in_bytes_total") > 200 * RECORDS
    ends = [
        max(one["tidemark_partition_high_watermark", f"partition={index},topic={TOPIC}"] for one in found)
        for index in range(PARTITIONS)
    ]
    assert sum(ends) == RECORDS
    of_group = f"group=readers,topic={TOPIC}"
    assert total(found, "tidemark_group_lag_records", of_group) == RECORDS - RECORDS // 2
    assert total(found, "tidemark_replica_leader_count") == total(found, "tidemark_partition_is_leader")
    for one in found:
        assert one["tidemark_broker_state", "state=running"] == 1
        assert one["tidemark_zookeeper_session_state", "state=connected"] == 1
        assert 0 < one["tidemark_zookeeper_lease_seconds", ""] <= one["tidemark_zookeeper_session_timeout_seconds", ""]
        assert one["tidemark_replica_lag_records_max", ""] == 0


def test_an_idle_service_rarely_wakes(cluster: LocalCluster) -> None:
    """The event loop counts its waits. A busy machine causes fewer waits; other work may disturb a window."""
    at_most = dict.fromkeys(cluster.names, WAKE_UPS_PER_S_MAX) | {ADMIN: WAKE_UPS_OF_ADMIN_PER_S_MAX}
    rates: dict[str, list[float]] = {name: [] for name in cluster.names}
    busy = set(rates)
    for _ in range(WINDOWS):
        before = {name: (time.monotonic(), scrape(cluster, name)[WAITS]) for name in busy}
        time.sleep(WINDOW_S)
        for name, (began_s, waits) in before.items():
            rates[name].append((scrape(cluster, name)[WAITS] - waits) / (time.monotonic() - began_s))
            if rates[name][-1] <= at_most[name]:
                busy.discard(name)
        if not busy:
            return
    pytest.fail(f"waits of event loops per second: {[(name, rates[name]) for name in sorted(busy)]}")


def test_only_the_active_controller_exports_cluster_metrics(cluster: LocalCluster) -> None:
    found = controllers(cluster)
    assert total(found, "tidemark_controller_active") == 1
    assert total(found, "tidemark_controller_live_brokers") == 3
    assert total(found, "tidemark_controller_offline_partitions") == 0
    assert total(found, "tidemark_controller_topics") >= 1
    elected = total(found, "tidemark_controller_leader_elections_total", "clean=true")
    assert total(found, "tidemark_controller_leader_election_seconds_count") == elected >= PARTITIONS
    assert total(found, "tidemark_controller_event_queue_seconds_count") > 0


def test_metrics_show_a_reassignment_until_its_end(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        first, second = admin.create_topic("moving", replication_factor=2).partitions[0].assigned_replicas
        (third,) = {0, 1, 2} - {first, second}
        admin.alter_partition_reassignments(
            [PartitionReassignment(TopicPartition("moving", 0), (BrokerId(third), second))]
        )
        wait_for(lambda: not admin.list_partition_reassignments().moves, "the move ends")
    of = "partition=0,topic=moving"
    wait_for(lambda: ("tidemark_partition_is_leader", of) not in brokers(cluster, first)[0], "its series end")
    # leader and controller metrics may change after the list of reassignments: the controller counts ten times a second
    wait_for(lambda: total(brokers(cluster), "tidemark_replica_reassigning") == 0, "the leader knows the end")
    wait_for(
        lambda: total(controllers(cluster), "tidemark_controller_reassignments") == 0,
        "the controller counts no reassignment",
    )
    for kind in ("expands", "shrinks"):
        wait_for(
            lambda name=f"tidemark_replica_isr_{kind}_total": (  # type: ignore[misc]
                total(brokers(cluster) + controllers(cluster), name, "reason=reassigned") >= 1
            ),
            f"its ISR {kind}",
        )
    found = brokers(cluster)
    assert total(found, "tidemark_partition_is_leader", of) == 1
    assert total(found, "tidemark_partition_replicas", of) == 2


def test_series_of_partitions_and_groups_can_be_switched_off_while_brokers_run(cluster: LocalCluster) -> None:
    everybody = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)

    def switch(value: str) -> None:
        with AdminClient(cluster.admin_address) as admin:
            admin.alter_configs(everybody, {"metrics.partitions": value, "metrics.groups": value})

    def told(prefix: str) -> bool:
        return any(name.startswith(prefix) for one in brokers(cluster) for name, _ in one)

    switch("false")
    wait_for(lambda: not told("tidemark_partition_") and not told("tidemark_group_lag_"), "the series end")
    assert total(brokers(cluster), "tidemark_replica_count") > 0
    switch("true")
    wait_for(lambda: told("tidemark_partition_"), "the series exist again")


def test_the_metrics_page_names_exactly_the_exported_metrics(cluster: LocalCluster) -> None:
    on_page = set(re.findall(r"^\| `((?:tidemark|process)_\w+)` \|", PAGE, flags=re.MULTILINE))
    types = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, flags=re.MULTILINE))
    labels_on_page = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \|([^|]*)\|", PAGE, flags=re.MULTILINE)
    }
    served: dict[str, str] = {}
    for name in (ADMIN, CONSOLE, controller_name(0), controller_name(1), *map(broker_name, range(3))):
        with urllib.request.urlopen(f"http://{cluster.metrics_address(name)}/metrics", timeout=10) as answer:
            served.update(re.findall(r"^# TYPE (\S+) (\w+)$", answer.read().decode(), flags=re.MULTILINE))
    ours = {name for name in served if name.startswith("tidemark_")}
    assert ours - on_page == set(), "served, and not on the page"
    assert {name for name in on_page if name not in served} == set(), "on the page, and not served"
    assert {name: types[name] for name in ours} == {name: served[name] for name in ours}
    for one in [*brokers(cluster), *controllers(cluster), scrape(cluster, ADMIN), scrape(cluster, CONSOLE)]:
        for name, labels in one:
            family = name if name in on_page else re.sub(r"_(bucket|sum|count)$", "", name)
            if family.startswith("tidemark_"):
                has = {part.partition("=")[0] for part in labels.split(",") if part} - {"le"}
                assert has == labels_on_page[family], name


def test_a_killed_follower_shrinks_isrs_for_a_reason_lags_more_and_more_and_comes_back(cluster: LocalCluster) -> None:
    before = total(controllers(cluster) + brokers(cluster, 0, 1), "tidemark_replica_isr_shrinks_total")
    led_before = total(brokers(cluster, 0, 1), "tidemark_replica_leader_count")
    cluster.kill(broker_name(2))
    # every partition with a replica there, of the topic and of the groups' own, is led by the others in the end
    wait_for(
        lambda: (
            total(controllers(cluster), "tidemark_controller_live_brokers") == 2
            and total(controllers(cluster), "tidemark_controller_offline_partitions") == 0
            and total(brokers(cluster, 0, 1), "tidemark_partition_under_replicated", f"topic={TOPIC}") == PARTITIONS
        ),
        "all of them are under-replicated",
    )
    found = brokers(cluster, 0, 1)
    assert total(found, "tidemark_partition_at_min_isr", f"topic={TOPIC}") == PARTITIONS
    assert total(found, "tidemark_partition_under_min_isr", f"topic={TOPIC}") == 0
    assert total(found, "tidemark_replica_leader_count") > led_before
    services = found + controllers(cluster)
    reasons = {
        labels
        for one in services
        for (name, labels), value in one.items()
        if name.endswith("isr_shrinks_total") and value
    }
    assert total(services, "tidemark_replica_isr_shrinks_total") >= before + PARTITIONS
    assert reasons & {"reason=broker_failed", "reason=suspected", "reason=disconnected"}, reasons
    with Producer(cluster.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(TOPIC, b"x" * 100, key=str(number).encode())
        producer.flush(60)
    found = brokers(cluster, 0, 1)
    assert total(found, "tidemark_replica_lag_records", "follower=2") >= RECORDS
    assert total(found, "tidemark_replica_lag_bytes", "follower=2") >= 100 * RECORDS
    assert max(one["tidemark_replica_lag_seconds", "follower=2"] for one in found) > 0
    behind = [f"follower=2,partition={index},topic={TOPIC}" for index in range(PARTITIONS)]
    assert sum(total(found, "tidemark_replica_follower_lag_records", one) for one in behind) >= RECORDS
    cluster.restart(broker_name(2))
    wait_for(
        lambda: total(brokers(cluster), "tidemark_partition_under_replicated", f"topic={TOPIC}") == 0,
        "the broker is in all ISRs again",
    )
    found = brokers(cluster)
    assert total(found, "tidemark_replica_isr_expands_total", "reason=caught_up") >= PARTITIONS
    assert total(found, "tidemark_replica_lag_records", "follower=2") == 0

# SPDX-License-Identifier: Apache-2.0
"""`tidemark bench` against a cluster: consistent figures, a topic that is deleted afterwards, refusals."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from tidemark.client import AdminClient, Consumer
from tidemark.local.cluster import LocalCluster

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness import warm_command
from tests.integration.harness.waiting import wait_for

QUICK = ("--warm-up", "0.5", "--duration", "1", "--message-size", "100")


def topics(cluster: LocalCluster) -> set[str]:
    return set(json.loads(succeeds(cluster, "topic", "list", "-o", "json")))


def test_producing_is_measured_and_the_topic_that_was_made_goes(cluster: LocalCluster) -> None:
    before = topics(cluster)
    done = json.loads(
        succeeds(cluster, "bench", "produce", "--rate", "100", "--producers", "2", "-p", "3", *QUICK, "--json")
    )
    measured = done["produce"]
    assert (done["partitions"], done["producers"], measured["failed"]) == (3, 2, 0)
    assert 0 < measured["records"] < 400
    assert measured["bytes"] == 100 * measured["records"]
    latency = measured["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert topics(cluster) == before


def test_tables_are_measured_as_their_records(cluster: LocalCluster) -> None:
    done = json.loads(succeeds(cluster, "bench", "produce", "--bulk", "--rate", "20000", *QUICK, "--json"))
    assert (done["bulk"], done["produce"]["failed"]) == (True, 0)
    assert 0 < done["produce"]["records"] < 60_000
    assert done["produce"]["bytes"] == 100 * done["produce"]["records"]
    assert done["produce"]["latency_ms"]["p50"] > 0


def test_a_backlog_is_consumed_whole_by_several_consumers(cluster: LocalCluster) -> None:
    flags = ("--backlog", "2MB", "--message-size", "1kB", "--consumers", "2", "--duration", "30")
    done = json.loads(succeeds(cluster, "bench", "consume", *flags, "--json"))
    assert (done["consume"]["records"], done["consume"]["bytes"]) == (2000, 2_000_000)
    assert done["consume"]["seconds"] < 30


def test_every_record_of_a_latency_run_arrives_and_people_get_a_table(cluster: LocalCluster) -> None:
    out = succeeds(cluster, "bench", "latency", "--rate", "40", "--consumers", "2", "--keys", "10", *QUICK)
    assert "until acknowledged" in out
    assert "until consumed" in out
    assert "40 records/s" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_benchmark_deletes_its_topic_and_stops_its_workers(
    cluster: LocalCluster, number: signal.Signals
) -> None:
    before = topics(cluster)
    flags = ("--bootstrap", cluster.bootstrap, "--rate", "100", "--warm-up", "0", "--duration", "100")
    command = [*warm_command.command(), "bench", "produce", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(command, text=True, **pipes) as running,  # type: ignore[call-overload]
        AdminClient(cluster.admin_address) as admin,
        Consumer(cluster.bootstrap) as consumer,
    ):
        try:
            wait_for(lambda: set(admin.list_topics()) - before, "the benchmark has a topic")
            consumer.assign(next(iter(set(admin.list_topics()) - before)))
            wait_for(lambda: sum(consumer.end_offsets().values()) > 0, "the benchmark produces")
            running.send_signal(number)
            output = running.communicate(timeout=30)  # the workers have the same stdout
        finally:
            running.kill()
    assert (running.returncode, *output) == (130, "", "")
    assert topics(cluster) == before


@pytest.mark.usefixtures("impatient")
def test_impossible_measurements_are_refused(cluster: LocalCluster) -> None:
    refused(tidemark(cluster, "bench", "produce", "--topic", "not-there", *QUICK), "UNKNOWN_TOPIC")
    refused(tidemark(cluster, "bench", "latency", "-r", "9", *QUICK), "INVALID_REPLICATION_FACTOR")
    refused(tidemark(cluster, "bench", "latency", "--rate", "1", "--producers", "2", *QUICK), "INVALID_REQUEST")
    assert tidemark(cluster, "bench", "produce", "--message-size", "big").status == 2

# SPDX-License-Identifier: Apache-2.0
"""The `tidemark` command as a process, as a shell or CI runs it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tidemark.local.cluster import LocalCluster

from tests.integration.harness import warm_command
from tests.integration.harness.warm_command import Ended

TIMEOUT_S = 60
ATTEMPTS = 10


def tidemark(
    cluster: LocalCluster | None, *arguments: str, stdin: str = "", fresh: bool = False, **environment: str
) -> Ended:
    """Run the command to its end; a `fresh` one imports its modules by itself, as a user's command does."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    if cluster is not None:
        inherited["TIDEMARK_BOOTSTRAP"] = cluster.bootstrap
    inherited |= environment
    if not fresh and sys.platform == "linux":
        return warm_command.run(arguments, stdin=stdin, environment=inherited, timeout_s=TIMEOUT_S)
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.cli.app", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=inherited,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def succeeds(cluster: LocalCluster, *arguments: str, stdin: str = "", fresh: bool = False) -> str:
    ended = tidemark(cluster, *arguments, stdin=stdin, fresh=fresh)
    assert (ended.status, ended.error) == (0, "")
    return ended.out


def refused(ended: Ended, code: str) -> None:
    assert ended.status == 1, ended
    assert ended.error.startswith(f"error {code}: ")
    assert len(ended.error.splitlines()) == 1, "one line, no traceback"
    assert ended.error.endswith("\n")


def consumed_for_half_a_second(cluster: LocalCluster, *arguments: str, fresh: bool = False) -> Ended:
    """Run `consume` with so short a timeout that brokers have a second for each answer.

    The command retries late brokers.
    """
    for _ in range(ATTEMPTS):
        ended = tidemark(cluster, "consume", *arguments, "--timeout", "0.5", fresh=fresh)
        if "not completed within its deadline" not in ended.error:
            break
    return ended


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def test_describe_prints_the_lines_of_kafkas_tools(cluster: LocalCluster, topic: str) -> None:
    flags = ("--partitions", "6", "--replication-factor", "3", "--config", "min.insync.replicas=2")
    assert succeeds(cluster, "topic", "create", topic, *flags, fresh=True) == (
        f"created topic {topic}: 6 partitions, replication factor 3\n"
    )
    first, *partitions = succeeds(cluster, "topic", "describe", topic, fresh=True).splitlines()
    assert first == f"Topic:{topic} PartitionCount:6 ReplicationFactor:3 Configs:min.insync.replicas=2"
    assert len(partitions) == 6
    for index, line in enumerate(partitions):
        words = line.split()
        assert words[:4] == ["Topic:", topic, "Partition:", str(index)]
        assert words[4::2] == ["Leader:", "Replicas:", "Isr:"]
        assert words[5] == words[7].split(",")[0]
        assert words[7] == words[9]
        assert sorted(words[7].split(",")) == ["0", "1", "2"]


def test_scripts_get_json_everywhere(cluster: LocalCluster, topic: str) -> None:
    planned = json.loads(succeeds(cluster, "topic", "create", topic, "--dry-run", "-o", "json"))
    assert (planned["created"], planned["partition_count"]) == (False, 1)
    assert topic not in json.loads(succeeds(cluster, "topic", "list", "-o", "json"))
    made = json.loads(succeeds(cluster, "topic", "create", topic, "-p", "2", "-r", "3", "-o", "json"))
    assert (made["created"], made["partition_count"], made["replication_factor"]) == (True, 2, 3)
    assert topic in json.loads(succeeds(cluster, "topic", "list", "-o", "json"))
    (described,) = json.loads(succeeds(cluster, "topic", "describe", topic, "-o", "json"))
    assert described["topic_id"] == made["topic_id"]
    assert [partition["leader"] for partition in described["partitions"]] == [
        partition["replicas"][0] for partition in described["partitions"]
    ]
    found = json.loads(succeeds(cluster, "cluster", "describe", "-o", "json"))
    assert [broker["broker_id"] for broker in found["brokers"]] == [0, 1, 2]
    assert (found["offline_count"], found["admin_address"]) == (0, cluster.admin_address)
    assert found["leader_election_wait_ms"] == 5_000
    assert json.loads(succeeds(cluster, "topic", "delete", topic, "--yes", "-o", "json")) == {
        "topic": topic,
        "deleted": True,
    }
    assert topic not in json.loads(succeeds(cluster, "topic", "list", "-o", "json"))


def test_people_get_a_table_of_brokers(cluster: LocalCluster) -> None:
    out = succeeds(cluster, "cluster", "describe", fresh=True)
    for address in cluster.bootstrap.split(","):
        assert address in out
    assert "leader.election.wait.ms of the active controller: 5000" in out


BAD_INPUT = [
    (("create", "a/b"), "INVALID_TOPIC_NAME"),
    (("create", ".."), "INVALID_TOPIC_NAME"),
    (("create", "x" * 250), "INVALID_TOPIC_NAME"),
    (("create", ""), "INVALID_TOPIC_NAME"),
    (("create", "bad", "--replication-factor", "4"), "INVALID_REPLICATION_FACTOR"),
    (("create", "bad", "--partitions", "0"), "INVALID_PARTITIONS"),
    (("create", "bad", "--partitions", "100000"), "INVALID_PARTITIONS"),
    (("create", "bad", "--config", "no.such.setting=1"), "UNKNOWN_CONFIG"),
    (("create", "bad", "--config", "segment.bytes=1"), "INVALID_CONFIG"),
    (("create", "bad", "-r", "2", "--config", "min.insync.replicas=3"), "INVALID_CONFIG"),
    (("describe", "not-there"), "UNKNOWN_TOPIC"),
    (("delete", "not-there", "--yes"), "UNKNOWN_TOPIC"),
]


def test_bad_input_is_one_line_with_its_code_status_1_and_changes_nothing(cluster: LocalCluster) -> None:
    before = succeeds(cluster, "topic", "list")
    for arguments, code in BAD_INPUT:
        refused(tidemark(cluster, "topic", *arguments), code)
    assert succeeds(cluster, "topic", "list") == before


def test_a_topic_that_exists_is_refused(cluster: LocalCluster, topic: str) -> None:
    succeeds(cluster, "topic", "create", topic)
    refused(tidemark(cluster, "topic", "create", topic), "TOPIC_ALREADY_EXISTS")


def test_the_admin_service_alone_is_enough(cluster: LocalCluster) -> None:
    ended = tidemark(None, "topic", "list", TIDEMARK_ADMIN=cluster.admin_address)
    assert (ended.status, ended.error) == (0, "")


def test_one_dead_broker_in_the_list_does_not_matter(cluster: LocalCluster) -> None:
    ended = tidemark(None, "topic", "list", "--bootstrap", f"127.0.0.1:1,{cluster.bootstrap}")
    assert (ended.status, ended.error) == (0, "")


@pytest.mark.usefixtures("impatient_with_brokers")
def test_a_cluster_that_is_not_there_is_one_line() -> None:
    refused(tidemark(None, "topic", "list", "--bootstrap", "127.0.0.1:1"), "BROKER_NOT_AVAILABLE")
    refused(tidemark(None, "topic", "list", "--admin", "127.0.0.1:1"), "BROKER_NOT_AVAILABLE")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("topic", "create", "--bootstrap", "127.0.0.1:1"),
        ("topic", "create", "t", "--bootstrap", "127.0.0.1:1", "--config", "no-value"),
        ("topic", "create", "t", "--bootstrap", "127.0.0.1:1", "-c", "a=1", "-c", "a=2"),
        ("topic", "create", "t", "--bootstrap", "127.0.0.1:1", "--partitions", "many"),
        ("topic", "create", "t", "--bootstrap", "127.0.0.1:1", "--partitions", "4294967296"),
        ("no-such-command",),
    ],
)
def test_bad_usage_ends_with_status_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    ended = tidemark(None, *arguments, fresh=arguments == ("no-such-command",))
    assert ended.status == 2
    assert "Error: " in ended.error
    assert "Traceback" not in ended.error


@pytest.mark.parametrize(
    "command",
    [
        *((), ("dev",), ("produce",), ("consume",), ("log", "dump"), ("log", "verify"), ("replicas", "verify")),
        *(("topic", verb) for verb in ("create", "list", "describe", "delete")),
        *(("bench", what) for what in ("produce", "consume", "latency")),
    ],
)
def test_help_teaches_with_examples(command: tuple[str, ...]) -> None:
    ended = tidemark(None, *command, "--help", fresh=not command)
    assert ended.status == 0
    assert f"tidemark {' '.join(command)}".strip() in ended.out.partition("Options:")[0].partition("\n")[2]


def test_lines_that_are_produced_are_consumed_with_their_keys(cluster: LocalCluster, topic: str) -> None:
    succeeds(cluster, "topic", "create", topic, "--partitions", "3")
    lines = [f"carrier-{index % 7}=flight {index} ü" for index in range(500)]
    sent = json.loads(succeeds(cluster, "produce", topic, "-k", "=", "-o", "json", stdin="\n".join(lines)))
    assert (sent["acknowledged"], sent["failed"], sum(sent["partitions"].values())) == (500, 0, 500)
    read = succeeds(cluster, "consume", topic, "--from", "earliest", "-n", "500", "--timeout", "20", "-k", "=")
    assert sorted(read.splitlines()) == sorted(lines)
    one = json.loads(succeeds(cluster, "consume", topic, "--from", "offset:1", "-n", "1", "-o", "json"))
    assert (one["topic"], one["offset"], one["headers"]) == (topic, 1, [])
    assert f"{one['key']}={one['value']}" in lines


def test_a_file_is_produced_and_silence_ends_consuming(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    succeeds(cluster, "topic", "create", topic)
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\ntwo\n")
    assert succeeds(cluster, "produce", topic, "--file", str(file), fresh=True) == f"sent 3 records to {topic}\n"
    assert consumed_for_half_a_second(cluster, topic, "--from", "earliest", fresh=True) == (0, "one\n\ntwo\n", "")
    assert consumed_for_half_a_second(cluster, topic, "--from", "timestamp:2100-01-01") == (0, "", "")


@pytest.mark.usefixtures("impatient")
def test_invalid_produce_and_consume_commands_print_one_line_and_exit_with_1(cluster: LocalCluster, topic: str) -> None:
    refused(tidemark(cluster, "produce", "not-there", stdin="x\n"), "UNKNOWN_TOPIC")
    refused(tidemark(cluster, "consume", "not-there", "--from", "earliest"), "UNKNOWN_TOPIC")
    succeeds(cluster, "topic", "create", topic)
    # The topic is there; brokers on a busy machine may receive its metadata late.
    unseparated = tidemark(
        cluster, "produce", topic, "-k", "=", stdin="a=1\nno separator\n", PATIENCE_WITH_TOPICS_S="30"
    )
    refused(unseparated, "INVALID_REQUEST")
    too_large = tidemark(cluster, "produce", topic, stdin="x" * (2 << 20), PATIENCE_WITH_TOPICS_S="30")
    refused(too_large, "BATCH_TOO_LARGE")
    missing = consumed_for_half_a_second(cluster, topic, "--from", "earliest", "-n", "2")
    assert missing.out == "1\n", "the records that came are printed"
    refused(missing, "REQUEST_TIMED_OUT")
    assert tidemark(cluster, "consume", topic, "--from", "yesterday").status == 2


def run_in_shell(cluster: LocalCluster, words: str) -> Ended:
    command = f"{shlex.join([sys.executable, '-m', 'tidemark.cli.app'])} {words}"
    environment = os.environ | {"TIDEMARK_BOOTSTRAP": cluster.bootstrap}
    environment.pop("PYTHONUNBUFFERED", None)  # a buffered write fails late
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_closed_and_full_streams_are_reported_in_one_line(cluster: LocalCluster, topic: str) -> None:
    refused(run_in_shell(cluster, f"topic create {topic} >&-"), "INVALID_REQUEST")
    assert topic not in succeeds(cluster, "topic", "list").splitlines(), "refused before anything is done"
    assert run_in_shell(cluster, f"topic create {topic} 2>&-").status == 0
    assert run_in_shell(cluster, f"produce {topic} <&-") == (0, f"sent 0 records to {topic}\n", "")
    for command in ("topic list", f"consume {topic} --until-end -o csv", "cluster describe"):
        refused(run_in_shell(cluster, f"{command} >/dev/full"), "STORAGE_ERROR")

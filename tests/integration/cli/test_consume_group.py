# SPDX-License-Identifier: Apache-2.0
"""`tidemark consume --group`: the group commits the printed records, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyarrow import parquet
from tidemark.client import AdminClient, Consumer, Groups, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import TidemarkError

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness import warm_command
from tests.integration.harness.waiting import wait_for

RECORDS = 10


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    """A topic of one partition with the records 0 to 9."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic(name, partitions=1, replication_factor=3)
        for number in range(RECORDS):
            producer.send(name, str(number).encode())
        producer.flush()
        yield name
        admin.delete_topic(name)


def lines(*numbers: int) -> str:
    return "".join(f"{number}\n" for number in numbers)


def committed(cluster: LocalCluster, group: str) -> list[int]:
    with Groups(cluster.bootstrap) as groups:
        # A command waits at most 3 s for the answer to its leave request; a killed member stays for 45 s.
        wait_for(lambda: groups.describe_groups([group])[0].members == (), "the member has left", 20)
        (found,) = groups.describe_groups([group])
    return [one.committed for one in found.partitions]


def test_a_group_continues_after_the_last_printed_record(cluster: LocalCluster, topic: str, group: str) -> None:
    of_group = ("consume", topic, "--group", group)
    assert succeeds(cluster, *of_group, "--count", "3") == lines(0, 1, 2)
    assert committed(cluster, group) == [3]
    assert succeeds(cluster, *of_group, "--until-end") == lines(*range(3, RECORDS))
    assert committed(cluster, group) == [RECORDS]
    assert succeeds(cluster, *of_group, "--until-end") == ""
    assert succeeds(cluster, *of_group, "--timeout", "2") == ""
    other = ("consume", topic, "--group", f"{group}-other", "--from", "latest")
    assert succeeds(cluster, *other, "--timeout", "2") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_group_consumer_commits_the_printed_records_and_leaves(
    cluster: LocalCluster, topic: str, group: str, tmp_path: Path, number: signal.Signals
) -> None:
    printed = tmp_path / "printed"
    command = [*warm_command.command(), "consume", topic, "--group", group, "--bootstrap", cluster.bootstrap]
    with printed.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as running:
        try:
            wait_for(lambda: printed.read_text() == lines(*range(RECORDS)), "all is printed")
            running.send_signal(number)
            _, error = running.communicate(timeout=30)
        finally:
            running.kill()
    assert (running.returncode, error) == (0, b"")
    assert committed(cluster, group) == [RECORDS]


def test_a_member_continues_an_assigned_partition_after_the_records_printed_by_another(
    cluster: LocalCluster, group: str, tmp_path: Path
) -> None:
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    files = [tmp_path / "one", tmp_path / "other"]
    command = [*warm_command.command(), "consume", topic, "--group", group, "--bootstrap", cluster.bootstrap]

    def printed() -> list[int]:
        return sorted(int(line) for file in files if file.exists() for line in file.read_text().splitlines())

    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer, ExitStack() as stack:
        admin.create_topic(topic, partitions=2, replication_factor=3)
        for count, file in enumerate(files):
            running = stack.enter_context(subprocess.Popen(command, stdout=stack.enter_context(file.open("wb"))))
            stack.callback(running.kill)
            with Groups(cluster.bootstrap) as groups:
                wait_for(
                    lambda groups=groups, count=count: (  # type: ignore[misc]
                        sum(bool(one.assigned) for one in groups.describe_groups([group])[0].members) == count + 1
                    ),
                    "each has a partition",
                    refused=TidemarkError,
                )
            for number in range(count * RECORDS, (count + 1) * RECORDS):
                producer.send(topic, str(number).encode(), partition=number % 2)
            producer.flush()
            wait_for(lambda count=count: len(printed()) >= (count + 1) * RECORDS, "all is printed")  # type: ignore[misc]
        assert printed() == list(range(2 * RECORDS)), "and nothing twice"
        assert all(file.read_text() for file in files)


def test_a_reader_that_has_seen_enough_has_committed_no_more_than_was_written(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*warm_command.command(), "consume", topic, "--group", group, "--bootstrap", cluster.bootstrap]
    ended = subprocess.run([*command, "--until-end"], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert succeeds(cluster, "consume", topic, "--group", group, "--until-end") == lines(*range(RECORDS))


def test_no_record_is_in_two_parquet_files(cluster: LocalCluster, topic: str, group: str, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("first.parquet", "second.parquet")]
    for file in files:
        succeeds(cluster, "consume", topic, "--group", group, "--until-end", "-o", "parquet", "--file", file)
    assert [parquet.read_table(file).num_rows for file in files] == [RECORDS, 0]


def test_a_member_that_is_given_nothing_ends_when_the_others_have_committed_all(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    with Consumer(cluster.bootstrap, group=group) as owner:
        owner.subscribe([topic])
        for _ in range(RECORDS):
            next(owner)
        owner.commit()
        assert succeeds(cluster, "consume", topic, "--group", group, "--until-end") == ""


def test_options_that_contradict_a_group_are_refused(cluster: LocalCluster, topic: str) -> None:
    for wrong in (("--group", " "), ("--group", "g", "--from", "offset:5"), ("--group", "g", "--partition", "0")):
        ended = tidemark(cluster, "consume", topic, *wrong)
        assert ended.status == 2
        assert "Error" in ended.error or "Invalid" in ended.error
    refused(tidemark(cluster, "consume", topic, "--group", "g" * 250), "INVALID_GROUP_ID")


@pytest.mark.usefixtures("impatient")
def test_a_topic_that_does_not_exist_is_refused_and_not_waited_for(cluster: LocalCluster) -> None:
    refused(tidemark(cluster, "consume", "no-such-topic", "--group", "g"), "UNKNOWN_TOPIC")

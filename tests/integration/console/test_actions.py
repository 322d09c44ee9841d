# SPDX-License-Identifier: Apache-2.0
"""Changes on a real cluster in a real browser: a reset of offsets, a reassignment to its end, a cancelled one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect
from tidemark.client import AdminClient, Consumer, Groups, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import TopicPartition

from tests.integration.console.test_browser import faults_of, opened
from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.console import RunningConsole, console_of
from tests.integration.harness.waiting import wait_for

TOPIC = "console-reset"
GROUP = "console/reset <b>'s"
RECORDS = 5
BATCHES, BATCH_BYTES = 60, 10_000
"""One batch for each record: a throttle delays complete batches, and splits none."""
SLOW_BYTES_PER_S, FAST_BYTES_PER_S = 10_000, 40_000


@pytest.fixture(scope="module")
def console(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with console_of(cluster, tmp_path_factory.mktemp("console"), console_write="true") as running:
        yield running


@pytest.fixture
def group(cluster: LocalCluster) -> Iterator[None]:
    """A group without members that has read all records of partition 0."""
    with (
        AdminClient(cluster.admin_address) as admin,
        Producer(cluster.bootstrap) as producer,
        Groups(cluster.bootstrap) as groups,
    ):
        admin.create_topic(TOPIC, partitions=2, replication_factor=3)
        for number in range(RECORDS):
            producer.send(TOPIC, str(number).encode(), partition=0).result(60)
        groups.set_offsets(GROUP, {TopicPartition(TOPIC, 0): RECORDS, TopicPartition(TOPIC, 1): 0})
        yield
        groups.delete(GROUP)
        admin.delete_topic(TOPIC)


def committed(groups: Groups) -> list[int]:
    (found,) = groups.describe_groups([GROUP])
    return [one.committed for one in found.partitions]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("javascript", [True, False])
def test_the_page_of_a_group_resets_its_offsets_after_a_dry_run(
    javascript: bool, chromium: Browser, console: RunningConsole, cluster: LocalCluster, axe: str
) -> None:
    with Groups(cluster.bootstrap) as groups, opened(chromium, java_script_enabled=javascript) as page:
        page.goto(console.url + "/groups")
        page.get_by_role("link", name=GROUP, exact=True).click()
        page.get_by_role("combobox", name="Topic").select_option(TOPIC)
        page.get_by_role("textbox", name="Partition").fill("0")
        page.get_by_role("combobox", name="Reset to").select_option("offset")
        page.get_by_role("textbox", name="Offset or time").fill("2")
        page.get_by_role("button", name="Dry run").click()
        expect(page.locator("tbody tr")).to_have_text(f"{TOPIC}:0 {RECORDS} 2", use_inner_text=True)
        assert not javascript or faults_of(page, axe) == []
        assert committed(groups) == [RECORDS, 0]
        page.get_by_role("button", name="Reset the offsets").click()
        expect(page.locator(".health")).to_contain_text("The offsets of 1 partition are set to offset:2")
        assert not javascript or faults_of(page, axe) == []
        assert committed(groups) == [2, 0]
        assert page.locator("main b").count() == 0


@pytest.mark.usefixtures("group")
def test_the_console_refuses_a_reset_after_a_member_joins(
    chromium: Browser, console: RunningConsole, cluster: LocalCluster, axe: str
) -> None:
    with Groups(cluster.bootstrap) as groups, opened(chromium) as page:
        page.goto(console.url + "/groups")
        page.get_by_role("link", name=GROUP, exact=True).click()
        page.get_by_role("button", name="Dry run").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        with Consumer(cluster.bootstrap, group=GROUP) as consumer:
            consumer.subscribe([TOPIC])
            wait_for(lambda: len(groups.describe_groups([GROUP])[0].members) == 1, "the member joins")
            page.get_by_role("button", name="Reset the offsets").click()
            expect(page.get_by_role("alert")).to_contain_text("member")
            assert faults_of(page, axe) == []
            assert page.get_by_role("button", name="Reset the offsets").count() == 0
        assert committed(groups) == [RECORDS, 0]


@contextmanager
def moving(cluster: LocalCluster, name: str, rate: int) -> Iterator[tuple[list[int], list[int], AdminClient]]:
    """A topic whose partition moves to another broker; yields its replicas before and after."""
    with (
        AdminClient(cluster.admin_address) as admin,
        Producer(cluster.bootstrap) as producer,
        kazoo_of(cluster) as zookeeper,
    ):
        admin.create_topic(name, replication_factor=1)
        for _ in range(BATCHES):
            producer.send(name, bytes(BATCH_BYTES), partition=0).result(60)
        leader = admin.describe_topics([name])[0].partitions[0].leader
        target = [(leader + 1) % 3]
        plan = {"topic": name, "partition": 0, "replicas": target, "throttle_bytes_per_s": rate}
        # By hand: just after so much was produced, the admin service refuses so low a throttle.
        zookeeper.create("/admin/reassign_partitions", json.dumps({"version": 1, "partitions": [plan]}).encode())
        yield [leader], target, admin
        wait_for(lambda: not admin.list_partition_reassignments([TopicPartition(name, 0)]).moves, "the move ends")
        admin.delete_topic(name)


def replicas(admin: AdminClient, name: str) -> list[int]:
    return list(admin.describe_topics([name])[0].partitions[0].assigned_replicas)


def test_the_page_of_reassignments_follows_a_move_to_its_end(
    chromium: Browser, console: RunningConsole, cluster: LocalCluster, axe: str
) -> None:
    name = "console-watched"
    with opened(chromium) as page:
        page.goto(f"{console.url}/reassignments?q={name}")
        expect(page.locator("#live-state")).to_contain_text("updated")
        with moving(cluster, name, FAST_BYTES_PER_S) as (_, target, admin):
            expect(page.locator("tbody tr meter")).to_have_count(1)
            assert faults_of(page, axe) == []
            expect(page.locator("[role=status]")).to_have_text("0 reassignments")
            assert replicas(admin, name) == target


def test_the_page_of_reassignments_cancels_a_move_after_a_dry_run(
    chromium: Browser, console: RunningConsole, cluster: LocalCluster, axe: str
) -> None:
    name = "console-cancelled"
    with opened(chromium) as page, moving(cluster, name, SLOW_BYTES_PER_S) as (before, _, admin):
        page.goto(f"{console.url}/reassignments?q={name}")
        page.locator("tbody").get_by_role("link", name="dry run").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        assert faults_of(page, axe) == []
        page.get_by_role("button", name="Cancel the reassignments").click()
        expect(page.locator(".health")).to_contain_text("The cancellation of 1 reassignment has begun")
        assert faults_of(page, axe) == []
        page.goto(f"{console.url}/reassignments?q={name}")
        expect(page.locator("[role=status]")).to_have_text("0 reassignments")
        assert replicas(admin, name) == before

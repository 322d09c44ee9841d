# SPDX-License-Identifier: Apache-2.0
"""Requests of the admin service to brokers: concurrent callers share them, and an answer has a bound on its age."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.admin import log_dirs, replica_sizes
from tidemark.admin.log_dirs import DisksOfBrokers
from tidemark.admin.replica_sizes import AGE_MAX_MS, ReplicaSizes
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.log_dirs import LogDirectoryContent, Wanted

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper, ManualClock

PARTITION = TopicPartition("flights", 0)
BROKERS = {
    BrokerId(number): BrokerRegistration(
        BrokerId(number), "localhost", 9192 + number, directory_ids=(f"d{number}",), boot_id="b"
    )
    for number in (1, 2)
}


class Requests:
    """Stands for DescribeLogDirs of every broker."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.error: TidemarkError | None = None

    async def describe(self, address: str, **_: object) -> tuple[LogDirectoryContent, ...]:
        self.addresses.append(address)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return ()


async def started() -> FakeMetadataStore:
    store = FakeZooKeeper().store()
    await store.start()
    return store


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    made = Requests()
    for module in (log_dirs, replica_sizes):
        monkeypatch.setattr(module, "describe_log_dirs", made.describe)
    return made


async def test_callers_share_a_request_for_sizes_to_each_broker_until_the_answer_is_too_old(requests: Requests) -> None:
    clock = ManualClock()
    sizes = ReplicaSizes(await started(), clock)
    answers = await asyncio.gather(*(sizes.of([PARTITION], BROKERS) for _ in range(50)))
    assert answers == [{BrokerId(1): {}, BrokerId(2): {}}] * 50
    assert requests.addresses == ["localhost:9193", "localhost:9194"]
    clock.advance(AGE_MAX_MS)
    await sizes.of([PARTITION], BROKERS)
    assert len(requests.addresses) == 2
    await sizes.of([TopicPartition("flights", 1)], BROKERS)
    assert len(requests.addresses) == 4
    clock.advance(1)
    await sizes.of([PARTITION], BROKERS)
    assert len(requests.addresses) == 6


async def test_a_description_of_log_directories_is_shared_and_never_older_than_its_call(requests: Requests) -> None:
    disks, wanted = DisksOfBrokers(await started(), ManualClock()), Wanted(frozenset(["flights"]))
    await asyncio.gather(*(disks.describe(BROKERS[BrokerId(1)], wanted) for _ in range(50)))
    assert len(requests.addresses) == 2  # one request of the first caller, one for all callers meanwhile
    await disks.describe(BROKERS[BrokerId(1)], wanted)
    assert len(requests.addresses) == 3


async def test_a_refusal_of_a_shared_request_names_the_broker_to_every_caller(requests: Requests) -> None:
    disks = DisksOfBrokers(await started(), ManualClock())
    requests.error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no answer")
    calls = [disks.describe(BROKERS[BrokerId(2)], Wanted()) for _ in range(3)]
    for refusal in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(refusal, TidemarkError)
        assert refusal.metadata["broker"] == "2"

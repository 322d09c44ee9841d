# SPDX-License-Identifier: Apache-2.0
"""Lost answers and concurrent writers, injected into the fake: the logic is that of the real store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import WriteOutcome

from tests.contract.test_metadata_store import (
    STATE,
    elected,
    read_isr,
    register,
    registration_of,
    topic_of,
    write_isr,
    write_of,
)
from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper, ManualClock
from tests.refusals import raises_code


@pytest.fixture
def ensemble() -> FakeZooKeeper:
    return FakeZooKeeper(ManualClock())


async def started(ensemble: FakeZooKeeper) -> FakeMetadataStore:
    store = ensemble.store()
    await store.start()
    return store


@pytest.mark.parametrize("applied", [True, False])
async def test_an_isr_write_without_an_answer_is_unknown_until_the_state_is_read(
    ensemble: FakeZooKeeper, applied: bool
) -> None:
    store = await started(ensemble)
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    store.session.lose_answers(1, applied=applied)
    assert (await write_isr(store, write_of(topic, 0, 0))).outcome is WriteOutcome.UNKNOWN
    found = await read_isr(store, TopicPartition(topic.topic, 0), ReplicaIdentity("id-1", "id-1-0"))
    assert found == (STATE, 1 if applied else 0)


async def test_only_the_multi_without_an_answer_is_unknown(ensemble: FakeZooKeeper) -> None:
    store = await started(ensemble)
    topic = await store.create_topic(topic_of(partitions=300))
    term = await elected(store)
    store.session.lose_answers(1, applied=True)
    results = await store.write_states(term, [write_of(topic, partition, -1) for partition in range(300)])
    outcomes = [result.outcome for result in results]
    unknown = outcomes.count(WriteOutcome.UNKNOWN)
    assert 0 < unknown < 300
    assert outcomes == [WriteOutcome.UNKNOWN] * unknown + [WriteOutcome.WRITTEN] * (300 - unknown)


@pytest.mark.parametrize("applied", [True, False])
async def test_an_election_without_an_answer_is_found_out_on_the_next_try(
    ensemble: FakeZooKeeper, applied: bool
) -> None:
    store = await started(ensemble)
    store.session.lose_answers(1, applied=applied)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await elected(store)
    term = await elected(store)
    assert (term.epoch, term.epoch_version) == (1, 0)
    topic = await store.create_topic(topic_of())
    assert await store.write_states(term, [write_of(topic, 0, -1)]) == [(WriteOutcome.WRITTEN, 0)]


async def test_a_candidate_that_is_overtaken_at_the_last_moment_is_not_elected(ensemble: FakeZooKeeper) -> None:
    slow, fast = await started(ensemble), await started(ensemble)

    async def overtake() -> None:
        await elected(fast, 101)

    slow.session.before_commit(overtake)
    assert await slow.elect_controller(BrokerId(100), "host:100") is None


async def test_a_candidate_overtaken_by_one_that_resigned_at_once_is_elected_next(ensemble: FakeZooKeeper) -> None:
    slow, fast = await started(ensemble), await started(ensemble)

    async def overtake() -> None:
        await fast.resign(await elected(fast, 101))

    slow.session.before_commit(overtake)
    assert (await elected(slow, 100)).epoch == 2


@pytest.mark.parametrize("applied", [True, False])
async def test_a_registration_without_an_answer_counts_once(ensemble: FakeZooKeeper, applied: bool) -> None:
    store = await started(ensemble)
    store.session.lose_answers(1, applied=applied)
    assert await register(store, registration_of(1), clean=False) == 0
    assert (await store.broker_epochs())[BrokerId(1)].unclean_at == 0


async def test_a_registration_that_is_overtaken_raises_the_epoch_of_the_faster_one(ensemble: FakeZooKeeper) -> None:
    slow, fast = await started(ensemble), await started(ensemble)

    async def overtake() -> None:
        await register(fast, registration_of(1), clean=False)

    slow.session.before_commit(overtake)
    assert await register(slow, registration_of(1)) == 1
    epochs = await slow.broker_epochs()
    assert (epochs[BrokerId(1)].broker_epoch, epochs[BrokerId(1)].unclean_at) == (1, 0)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_topic_created_without_an_answer_can_be_created_again_with_its_id(
    ensemble: FakeZooKeeper, applied: bool
) -> None:
    store = await started(ensemble)
    store.session.lose_answers(1, applied=applied)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await store.create_topic(topic_of())
    assert (await store.create_topic(topic_of())).topic_id == "id-1"
    with raises_code(ErrorCode.TOPIC_ALREADY_EXISTS):
        await store.create_topic(topic_of(topic_id="id-2"))


async def test_producer_ids_of_a_block_whose_answer_was_lost_are_never_given(ensemble: FakeZooKeeper) -> None:
    store = await started(ensemble)
    store.session.lose_answers(1, applied=True)
    with pytest.raises(TidemarkError):
        await store.next_producer_ids(10)
    assert await store.next_producer_ids(10) == range(10, 20)


async def test_a_deletion_cut_short_is_finished_by_the_next_one(ensemble: FakeZooKeeper) -> None:
    store = await started(ensemble)
    topic = await store.create_topic(topic_of(partitions=400))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, partition, -1) for partition in range(400)])
    await store.request_topic_deletion(topic.topic)
    store.session.lose_answers(1, applied=True)
    with pytest.raises(TidemarkError):
        await store.delete_topic(term, topic)
    assert set(await store.topics()) == {topic.topic}, "seen until nothing of it is left"
    await store.delete_topic(term, topic)
    assert await store.topics() == {}
    assert await store.requested_deletions() == frozenset()


async def test_a_repeated_deletion_spares_a_topic_that_is_created_meanwhile(
    ensemble: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next topic of the name would have neither settings nor leaders."""
    store, other = await started(ensemble), await started(ensemble)
    before = await store.create_topic(topic_of())
    term = await elected(store)
    store.session.lose_answers(1, applied=True)
    with pytest.raises(TidemarkError):
        await store.delete_topic(term, before)
    read_many, created = store.session.read_many, []

    async def read_then_created(paths: list[str]) -> object:
        nodes = await read_many(paths)
        created.append(await other.create_topic(topic_of(topic_id="id-2")))
        return nodes

    with monkeypatch.context() as patched:
        patched.setattr(store.session, "read_many", read_then_created)
        await store.delete_topic(term, before)
    assert created == [*(await store.topics()).values()]


async def test_the_lease_of_a_suspended_session_ends_and_its_writes_are_not_sent(ensemble: FakeZooKeeper) -> None:
    clock = ensemble.clock
    assert isinstance(clock, ManualClock)
    store = await started(ensemble)
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    store.session.suspend()
    clock.advance(5000)
    assert store.lease_valid_until_ms() == clock.now_ms()
    moved = replace(STATE, leader_epoch=LeaderEpoch(9))
    with pytest.raises(TidemarkError) as refusal:
        await store.write_states(term, [write_of(topic, 0, -1, moved)])
    assert refusal.value.metadata["sent"] == "false"
    store.session.resume()
    assert await store.states([TopicPartition(topic.topic, 0)]) == {}

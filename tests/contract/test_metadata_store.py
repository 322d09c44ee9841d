# SPDX-License-Identifier: Apache-2.0
"""Behaviour of every MetadataStore: the real store over a real ZooKeeper, and the simulator's fake."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.ports import ControllerTerm, StateWrite, StoreEvent, WriteOutcome, WriteResult
from tidemark.zookeeper.multis import Set, commit
from tidemark.zookeeper.store import MetadataStore

from tests.contract.conftest import Cluster, Ear

BROKERS = (BrokerId(0), BrokerId(1), BrokerId(2))
STATE = LeaderAndIsr(
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(3),
    isr=(IsrEntry(BrokerId(1), BrokerEpoch(0)), IsrEntry(BrokerId(2), BrokerEpoch(4))),
    elr=(IsrEntry(BrokerId(0), BrokerEpoch(1)),),
    last_known=(IsrEntry(BrokerId(0), BrokerEpoch(1)),),
    min_isr=2,
    lineage=1,
)


def topic_of(name: str = "flights", partitions: int = 2, topic_id: str = "id-1") -> TopicDescription:
    return TopicDescription(
        topic=name,
        topic_id=topic_id,
        partitions=dict.fromkeys(range(partitions), BROKERS),
        incarnations={p: f"{topic_id}-{p}" for p in range(partitions)},
        configs={"min.insync.replicas": "2"},
    )


def write_of(
    topic: TopicDescription, partition: int, version: int, state: LeaderAndIsr = STATE, **epochs: int
) -> StateWrite:
    return StateWrite(
        TopicPartition(topic.topic, partition),
        ReplicaIdentity(topic.topic_id, topic.incarnations[partition]),
        state,
        version,
        {BrokerId(int(name[1:])): BrokerEpoch(epoch) for name, epoch in epochs.items()},
    )


async def write_isr(store: MetadataStore, write: StateWrite) -> WriteResult:
    return (await store.write_isrs([write]))[0]


async def read_isr(store: MetadataStore, partition: TopicPartition, identity: ReplicaIdentity) -> VersionedState | None:
    return (await store.read_isrs({partition: identity})).get(partition)


def registration_of(
    broker_id: int, *, directories: Sequence[str] = ("disk",), boot_id: str = "boot"
) -> BrokerRegistration:
    return BrokerRegistration(
        BrokerId(broker_id),
        "127.0.0.1",
        9192 + broker_id,
        rack="r1",
        directory_ids=tuple(directories),
        boot_id=boot_id,
        features={"batch": 1},
        endpoints=(f"internal://127.0.0.1:{9192 + broker_id}", "clients.mtls://broker.example.com:9392"),
    )


async def register(
    store: MetadataStore,
    registration: BrokerRegistration,
    *,
    clean: bool = True,
    flushed_kept: bool = False,
    crashed: bool = False,
) -> BrokerEpoch:
    return await store.register_broker(
        registration,
        clean=clean,
        locked_directory_ids=frozenset(registration.directory_ids),
        flushed_kept=flushed_kept,
        crashed=crashed,
    )


async def elected(store: MetadataStore, controller_id: int = 100) -> ControllerTerm:
    term = await store.elect_controller(BrokerId(controller_id), f"host:{controller_id}", election_wait_ms=5_000)
    assert term is not None
    return term


def code_of(error: pytest.ExceptionInfo[TidemarkError]) -> ErrorCode:
    return error.value.code


async def test_concurrent_first_readers_get_the_same_cluster_id(cluster: Cluster) -> None:
    stores = [await cluster.store() for _ in range(3)]
    ids = await asyncio.gather(*(store.create_cluster_id() for store in stores))
    assert len(set(ids)) == 1
    assert ids[0]


async def test_a_read_creates_no_cluster_id_and_a_tree_that_had_brokers_gets_none(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await store.cluster_id() == ""
    assert (await store.cluster_snapshot()).cluster_id == ""
    await store.register_broker(registration_of(0), clean=True, locked_directory_ids=frozenset())
    with pytest.raises(TidemarkError) as refused:
        await store.create_cluster_id()
    assert code_of(refused) is ErrorCode.INVALID_CONFIG
    assert await store.cluster_id() == ""


async def test_the_snapshot_has_the_cluster_id_once_there_is_one(cluster: Cluster) -> None:
    store = await cluster.store()
    assert (await store.cluster_snapshot()).cluster_id == ""
    created = await store.create_cluster_id()
    await store.register_broker(registration_of(0), clean=True, locked_directory_ids=frozenset())
    assert (await store.cluster_snapshot()).cluster_id == created


# brokers


async def test_other_sessions_read_a_registration_and_its_epoch_counts_registrations(cluster: Cluster) -> None:
    one, other = await cluster.store(), await cluster.store()
    registration = registration_of(1)
    assert await register(one, registration) == 0
    assert await other.live_brokers() == {1: replace(registration, broker_epoch=BrokerEpoch(0))}
    await one.stop()
    assert await other.live_brokers() == {}
    assert await register(other, registration) == 1
    epochs = await other.broker_epochs()
    assert epochs[BrokerId(1)].broker_epoch == 1
    assert epochs[BrokerId(1)].directory_ids == ("disk",)


async def test_an_unclean_registration_leaves_its_epoch_and_clean_ones_keep_it(cluster: Cluster) -> None:
    found = []
    for clean in (True, False, True, True):
        store = await cluster.store()
        await register(store, registration_of(1), clean=clean)
        found.append((await store.broker_epochs())[BrokerId(1)].unclean_at)
        await store.stop()
    assert found == [-1, 1, 1, 1]


async def test_an_unclean_registration_that_kept_flushed_records_is_no_loss_of_them(
    cluster: Cluster,
) -> None:
    found = []
    for clean, flushed_kept in ((True, False), (False, True), (False, False), (False, True), (True, False)):
        store = await cluster.store()
        await register(store, registration_of(1), clean=clean, flushed_kept=flushed_kept)
        record = (await store.broker_epochs())[BrokerId(1)]
        found.append((record.unclean_at, record.lost_at))
        await store.stop()
    assert found == [(-1, -1), (1, -1), (2, 2), (3, 2), (3, 2)]


async def test_a_registration_after_a_crash_leaves_its_epoch_and_later_ones_keep_it(cluster: Cluster) -> None:
    found = []
    for crashed in (False, True, False):
        store = await cluster.store()
        await register(store, registration_of(1), crashed=crashed)
        found.append((await store.broker_epochs())[BrokerId(1)].crashed_at)
        await store.stop()
    assert found == [-1, 1, 1]


async def test_a_restarted_broker_takes_the_place_of_its_dead_process_at_once(cluster: Cluster) -> None:
    dead, restarted = await cluster.store(), await cluster.store()
    await register(dead, registration_of(1))
    assert await register(restarted, registration_of(1)) == 1
    assert (await restarted.live_brokers())[BrokerId(1)].broker_epoch == 1
    await dead.stop()
    assert (await restarted.live_brokers())[BrokerId(1)].broker_epoch == 1


async def test_an_id_registered_with_other_disks_is_taken_and_nothing_changes(cluster: Cluster) -> None:
    owner, intruder = await cluster.store(), await cluster.store()
    await register(owner, registration_of(1, directories=["a", "b"]))
    with pytest.raises(TidemarkError) as refusal:
        await register(intruder, registration_of(1, directories=["c"]))
    assert code_of(refusal) is ErrorCode.BROKER_ID_TAKEN
    assert refusal.value.metadata["port"] == "9193"
    assert (await owner.broker_epochs())[BrokerId(1)].broker_epoch == 0
    assert (await owner.live_brokers())[BrokerId(1)].directory_ids == ("a", "b")


async def test_the_same_disk_under_another_boot_waits_until_the_old_session_has_ended(cluster: Cluster) -> None:
    old, new = await cluster.store(), await cluster.store()
    await register(old, registration_of(1, boot_id="before"))
    registering = asyncio.create_task(register(new, registration_of(1, boot_id="after")))
    for _ in range(20):  # the waiting session retries while others are served
        await old.live_brokers()
    assert not registering.done()
    await old.stop()
    async with asyncio.timeout(20):
        assert await registering == 1


async def test_registering_again_in_the_same_session_gives_the_epoch_it_has(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await register(store, registration_of(1)) == 0
    assert await register(store, registration_of(1)) == 0
    assert await register(store, replace(registration_of(1), host="elsewhere")) == 1


async def test_a_watch_on_the_brokers_reports_a_bounce(cluster: Cluster) -> None:
    store, broker, again = await cluster.store(), await cluster.store(), await cluster.store()
    await register(broker, registration_of(1))
    ear = Ear(store)
    await store.live_brokers(watch=True)
    await register(again, registration_of(1))
    await ear.hears(StoreEvent.BROKERS)
    assert (await store.live_brokers(watch=True))[BrokerId(1)].broker_epoch == 1
    await again.stop()
    await ear.hears(StoreEvent.BROKERS)
    assert await store.live_brokers() == {}


# the controller


async def test_one_of_many_candidates_is_elected(cluster: Cluster) -> None:
    stores = [await cluster.store() for _ in range(4)]
    terms = await asyncio.gather(
        *(store.elect_controller(BrokerId(index), f"host:{index}") for index, store in enumerate(stores))
    )
    won = [term for term in terms if term is not None]
    assert len(won) == 1
    assert won[0].epoch == 1
    for store in stores:
        assert await store.controller() == (won[0].controller_id, f"host:{won[0].controller_id}", -1)


async def test_each_term_has_a_higher_epoch_and_the_standby_is_notified_of_the_end(cluster: Cluster) -> None:
    first, standby = await cluster.store(), await cluster.store()
    ear = Ear(standby)
    assert await standby.controller(watch=True) is None
    term = await elected(first, 100)
    await ear.hears(StoreEvent.CONTROLLER)
    assert await standby.elect_controller(BrokerId(101), "host:101") is None
    assert await standby.controller(watch=True) == (100, "host:100", 5_000)
    await first.resign(term)
    await ear.hears(StoreEvent.CONTROLLER)
    later = await elected(standby, 101)
    assert later.epoch == term.epoch + 1
    assert later.epoch_version > term.epoch_version


async def test_the_active_controllers_session_gets_its_term_again(cluster: Cluster) -> None:
    store = await cluster.store()
    assert await elected(store) == await elected(store)


async def test_resigning_a_term_that_is_over_leaves_the_successor_in_office(cluster: Cluster) -> None:
    old, new = await cluster.store(), await cluster.store()
    term = await elected(old, 100)
    await old.resign(term)
    await elected(new, 101)
    await old.resign(term)
    assert await old.controller() == (101, "host:101", 5_000)


async def test_after_another_election_every_write_of_the_old_term_is_refused(cluster: Cluster) -> None:
    old, new = await cluster.store(), await cluster.store()
    topic = await old.create_topic(topic_of())
    term = await elected(old, 100)
    await old.write_states(term, [write_of(topic, 0, -1)])
    await old.resign(term)
    await elected(new, 101)
    for attempt in (
        old.write_states(term, [write_of(topic, 0, 0), write_of(topic, 1, -1)]),
        old.delete_topic(term, topic),
    ):
        with pytest.raises(TidemarkError) as refusal:
            await attempt
        assert code_of(refusal) is ErrorCode.CONTROLLER_NOT_ACTIVE
    partitions = [TopicPartition(topic.topic, 0), TopicPartition(topic.topic, 1)]
    assert {p: found.version for p, found in (await new.states(partitions)).items()} == {partitions[0]: 0}
    assert set(await new.topics()) == {topic.topic}


# topics


async def test_a_topic_reads_as_it_was_created(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    created = await store.create_topic(topic_of())
    assert created.created_zxid == created.modified_zxid == created.configs_zxid > 0
    assert (
        replace(created, created_zxid=-1, modified_zxid=-1, configs_zxid=-1, configs_version=-1, version=-1)
        == topic_of()
    )
    assert await other.topics(["flights", "no such topic"]) == {"flights": created}
    assert await other.topics() == {"flights": created}


async def test_a_name_is_given_once_and_the_loser_changes_nothing(cluster: Cluster) -> None:
    one, other = await cluster.store(), await cluster.store()
    first = await one.create_topic(topic_of())
    with pytest.raises(TidemarkError) as refusal:
        await other.create_topic(replace(topic_of(topic_id="id-2"), configs={"segment.bytes": "4096"}))
    assert code_of(refusal) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert await other.topics() == {"flights": first}


async def test_a_topic_too_large_for_a_node_is_refused_with_the_number_that_fits(cluster: Cluster) -> None:
    store = await cluster.store(session_timeout_ms=30_000)  # 40,000 partitions take a busy machine a while
    with pytest.raises(TidemarkError) as refusal:
        await store.create_topic(topic_of(partitions=40_000))
    assert code_of(refusal) is ErrorCode.INVALID_PARTITIONS
    fitting = int(refusal.value.metadata["partitions_max"])
    assert (await store.create_topic(topic_of(partitions=fitting - fitting // 10))).version == 0


async def test_a_watch_on_the_topics_reports_a_new_one(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(store)
    await store.topics(watch=True)
    await other.create_topic(topic_of())
    await ear.hears(StoreEvent.TOPICS)
    assert set(await store.topics(watch=True)) == {"flights"}


async def test_a_deletion_is_requested_seen_and_leaves_nothing(cluster: Cluster) -> None:
    store, admin = await cluster.store(), await cluster.store()
    ear = Ear(store)
    topic = await admin.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    assert await store.requested_deletions(watch=True) == frozenset()
    await admin.request_topic_deletion("flights")
    await admin.request_topic_deletion("flights")
    await ear.hears(StoreEvent.DELETIONS)
    assert await store.requested_deletions() == {"flights"}
    await store.delete_topic(term, topic)
    await store.delete_topic(term, topic)
    assert await store.requested_deletions() == frozenset()
    assert await store.topics() == {}
    assert await store.states([TopicPartition("flights", 0)]) == {}
    recreated = await admin.create_topic(replace(topic_of(topic_id="id-2"), configs={}))
    assert recreated.configs == {}
    assert recreated.created_zxid > topic.created_zxid
    await store.delete_topic(term, topic)
    assert set(await store.topics()) == {"flights"}


async def test_a_deletion_that_was_requested_for_one_topic_does_not_delete_the_next_topic_of_the_name(
    cluster: Cluster,
) -> None:
    store, admin = await cluster.store(), await cluster.store()
    ear = Ear(store)
    before = await admin.create_topic(topic_of())
    term = await elected(store)
    await store.delete_topic(term, before)
    after = await admin.create_topic(topic_of(topic_id="id-2"))
    assert await store.requested_deletions(watch=True) == frozenset()
    await admin.request_topic_deletion("flights", before.topic_id)  # its service read the topic before it was deleted
    await ear.hears(StoreEvent.DELETIONS)
    assert await store.requested_deletions(watch=True) == frozenset()
    await admin.request_topic_deletion("flights", after.topic_id)
    await ear.hears(StoreEvent.DELETIONS)
    assert await store.requested_deletions() == {"flights"}
    await admin.request_topic_deletion("flights", after.topic_id)
    await store.delete_topic(term, after)
    assert await store.topics() == {}


async def test_requested_deletions_include_a_topic_whose_node_does_not_parse(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    await store.request_topic_deletion("flights", topic.topic_id)
    await commit(store._session, [Set("/brokers/topics/flights", b"{", topic.version)])
    assert await store.requested_deletions() == {"flights"}


async def test_deleting_a_topic_of_thousands_of_nodes_goes_in_several_multis(cluster: Cluster) -> None:
    store = await cluster.store()
    term = await elected(store)
    topic = await store.create_topic(topic_of(partitions=700))
    await store.write_states(term, [write_of(topic, partition, -1) for partition in range(700)])
    await store.delete_topic(term, topic)
    assert await store.topics() == {}


async def test_a_topic_that_is_not_there_cannot_be_deleted(cluster: Cluster) -> None:
    store = await cluster.store()
    with pytest.raises(TidemarkError) as refusal:
        await store.request_topic_deletion("absent")
    assert code_of(refusal) is ErrorCode.UNKNOWN_TOPIC
    assert await store.requested_deletions() == frozenset()


# partition states


async def test_a_state_reads_as_it_was_written_and_its_version_counts(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    partition = TopicPartition(topic.topic, 0)
    assert await store.write_states(term, [write_of(topic, 0, -1)]) == [(WriteOutcome.WRITTEN, 0)]
    changed = replace(STATE, leader_epoch=LeaderEpoch(4), sealed=True)
    assert await store.write_states(term, [write_of(topic, 0, 0, changed)]) == [(WriteOutcome.WRITTEN, 1)]
    assert await other.states([partition, TopicPartition(topic.topic, 1)], sync=True) == {partition: (changed, 1)}


async def test_one_conflict_leaves_only_its_own_write_undone(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=3))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, partition, -1) for partition in range(2)])
    moved = replace(STATE, leader_epoch=LeaderEpoch(9))
    results = await store.write_states(
        term, [write_of(topic, 0, 0, moved), write_of(topic, 1, 7, moved), write_of(topic, 2, -1, moved)]
    )
    assert results == [(WriteOutcome.WRITTEN, 1), (WriteOutcome.CONFLICT, -1), (WriteOutcome.WRITTEN, 0)]
    partitions = [TopicPartition(topic.topic, partition) for partition in range(3)]
    found = await store.states(partitions)
    assert found == dict(zip(partitions, [(moved, 1), (STATE, 0), (moved, 0)], strict=True))


async def test_a_state_that_exists_or_has_no_topic_cannot_be_created(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    for write in (write_of(topic, 0, -1), write_of(topic_of("absent"), 0, -1)):
        assert [result.outcome for result in await store.write_states(term, [write])] == [WriteOutcome.CONFLICT]


async def test_more_than_500_writes_go_in_several_multis_with_results_in_order(cluster: Cluster) -> None:
    store = await cluster.store()
    count = 1200
    topic = await store.create_topic(topic_of(partitions=count))
    term = await elected(store)
    created = await store.write_states(term, [write_of(topic, partition, -1) for partition in range(count)])
    assert set(created) == {(WriteOutcome.WRITTEN, 0)}
    await store.write_states(term, [write_of(topic, 3, 0)])
    results = list(await store.write_states(term, [write_of(topic, partition, 0) for partition in range(count)]))
    assert results.pop(3) == (WriteOutcome.CONFLICT, -1)
    assert set(results) == {(WriteOutcome.WRITTEN, 1)}
    partitions = [TopicPartition(topic.topic, partition) for partition in range(count)]
    assert len(await store.states(partitions)) == count


async def test_large_states_are_cut_by_bytes(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=200))
    term = await elected(store)
    large = replace(STATE, isr=tuple(IsrEntry(BrokerId(1000 + i), BrokerEpoch(10**6)) for i in range(1000)))
    results = await store.write_states(term, [write_of(topic, partition, -1, large) for partition in range(200)])
    assert set(results) == {(WriteOutcome.WRITTEN, 0)}


async def test_an_election_fails_when_the_elected_broker_has_bounced(cluster: Cluster) -> None:
    store, broker = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await register(broker, registration_of(1))
    assert (await store.write_states(term, [write_of(topic, 0, -1, b1=0)]))[0].outcome is WriteOutcome.WRITTEN
    bounced = await cluster.store()
    await register(bounced, registration_of(1))
    assert (await store.write_states(term, [write_of(topic, 0, 0, b1=0)]))[0].outcome is WriteOutcome.CONFLICT
    assert await store.write_states(term, [write_of(topic, 0, 0, b1=1)]) == [(WriteOutcome.WRITTEN, 1)]


async def test_a_leader_changes_its_isr_at_the_version_it_knows_only(cluster: Cluster) -> None:
    store, leader = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await register(leader, registration_of(2))
    await store.write_states(term, [write_of(topic, 0, -1)])
    identity = ReplicaIdentity(topic.topic_id, topic.incarnations[0])
    shrunk = replace(STATE, isr=STATE.isr[:1])
    assert await write_isr(leader, write_of(topic, 0, 0, shrunk)) == (WriteOutcome.WRITTEN, 1)
    assert (await write_isr(leader, write_of(topic, 0, 0))).outcome is WriteOutcome.CONFLICT
    assert (await write_isr(leader, write_of(topic, 0, 1, b2=5))).outcome is WriteOutcome.CONFLICT
    assert await write_isr(leader, write_of(topic, 0, 1, b2=0)) == (WriteOutcome.WRITTEN, 2)
    assert await read_isr(leader, TopicPartition(topic.topic, 0), identity) == (STATE, 2)


async def test_a_leader_of_an_earlier_incarnation_neither_writes_nor_reads(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    earlier = replace(topic, incarnations={0: "gone"})
    assert (await write_isr(store, write_of(earlier, 0, 0))).outcome is WriteOutcome.CONFLICT
    assert await read_isr(store, TopicPartition(topic.topic, 0), ReplicaIdentity(topic.topic_id, "gone")) is None
    assert await read_isr(store, TopicPartition("absent", 0), ReplicaIdentity("x", "y")) is None


async def test_a_malformed_state_is_skipped_and_unreadable_for_its_leader(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    path = "/brokers/topics/flights/0/leaderAndISR"
    for broken in (b"", b"\xff", b"[]", b'{"leader":1}', b'{"leader":"x","leader_epoch":1,"isr":[]}'):
        await cluster.corrupt(path, broken)
        unreadable: set[TopicPartition] = set()
        assert await store.states([TopicPartition("flights", 0)], unreadable=unreadable) == {}
        assert unreadable == {TopicPartition("flights", 0)}
        assert await store.states([TopicPartition("flights", 0)]) == {}
        unreadable.clear()
        identity = write_of(topic, 0, -1).identity
        assert await store.read_isrs({TopicPartition("flights", 0): identity}, unreadable=unreadable) == {}
        assert unreadable == {TopicPartition("flights", 0)}


# producer ids


async def test_blocks_of_producer_ids_never_overlap(cluster: Cluster) -> None:
    stores = [await cluster.store() for _ in range(3)]
    blocks = await asyncio.gather(*(store.next_producer_ids(100) for store in stores for _ in range(4)))
    given = [producer_id for block in blocks for producer_id in block]
    assert sorted(given) == list(range(1200))
    assert await stores[0].next_producer_ids(10, at_least=5000) == range(5000, 5010)
    assert await stores[1].next_producer_ids(10, at_least=5000) == range(5010, 5020)


@pytest.mark.parametrize("damage", [b"", b'{"version":1}', b'{"next":-5}', b'{"next":9223372036854775800}'])
async def test_producer_ids_begin_at_the_wanted_one_after_damage(cluster: Cluster, damage: bytes) -> None:
    """Regression: no broker gave a producer id until an operator repaired the node."""
    store = await cluster.store()
    assert await store.next_producer_ids(10, at_least=5000) == range(5000, 5010)
    await cluster.corrupt("/producer_ids", damage)
    assert await store.next_producer_ids(10, at_least=6000) == range(6000, 6010)
    assert await store.next_producer_ids(10, at_least=6000) == range(6010, 6020)


# sessions


async def test_an_expired_session_gets_the_event_loses_its_nodes_and_can_be_replaced(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear, standby = Ear(store), Ear(other)
    await register(store, registration_of(1))
    await elected(store)
    await other.controller(watch=True)
    await other.live_brokers(watch=True)
    await cluster.expire(store)
    await ear.hears(StoreEvent.SESSION_EXPIRED)
    await standby.hears(StoreEvent.CONTROLLER)
    assert store.lease_valid_until_ms() == 0
    assert await other.live_brokers() == {}
    assert await other.controller() is None
    with pytest.raises(TidemarkError) as refusal:
        await store.live_brokers()
    assert code_of(refusal) is ErrorCode.COORDINATION_UNAVAILABLE
    await store.new_session()
    assert store.lease_valid_until_ms() > 0
    assert await register(store, registration_of(1)) == 1
    assert (await elected(store)).epoch == 2


async def test_while_nothing_answers_calls_fail_in_time_and_the_session_comes_back(cluster: Cluster) -> None:
    store = await cluster.store(session_timeout_ms=8000)
    ear = Ear(store)
    topic = await store.create_topic(topic_of())
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    await register(store, registration_of(1))
    await cluster.stop_serving()
    await ear.hears(StoreEvent.SESSION_SUSPENDED)
    lease_ms = store.lease_valid_until_ms()
    assert store.lease_length_ms() == 8000 - 8000 // 6
    async with asyncio.timeout(10):
        with pytest.raises(TidemarkError) as refusal:
            await write_isr(store, write_of(topic, 0, 0))
    assert code_of(refusal) is ErrorCode.COORDINATION_UNAVAILABLE
    assert store.lease_valid_until_ms() == lease_ms, "the lease runs out"
    await cluster.serve_again()
    await ear.hears(StoreEvent.SESSION_RESTORED)
    assert set(await store.live_brokers()) == {1}
    assert store.lease_valid_until_ms() >= lease_ms
    assert await write_isr(store, write_of(topic, 0, 0)) == (WriteOutcome.WRITTEN, 1)


async def test_a_closed_session_takes_its_ephemeral_nodes_along(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    await register(store, registration_of(1))
    await elected(store)
    await store.stop()
    await store.stop()
    assert await other.live_brokers() == {}
    assert await other.controller() is None

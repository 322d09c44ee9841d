# SPDX-License-Identifier: Apache-2.0
"""A broker's epoch node deleted or broken manually: no epoch is used twice, no unknown replica counts as in sync."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrEntry,
    TidemarkError,
)
from tidemark.ports import StoreEvent
from tidemark.zookeeper import codecs
from tidemark.zookeeper.store import MetadataStore

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import STATE, elected, topic_of, write_of
from tests.contract.test_orphaned_topics import removed_by_hand
from tests.refusals import raises_code

ONE = BrokerId(1)
NODE = "/brokers/epochs/1"


async def registered(store: MetadataStore, *, clean: bool = True) -> BrokerEpoch:
    mine = BrokerRegistration(ONE, "host", 9192, directory_ids=("disk",), boot_id="boot")
    return await store.register_broker(mine, clean=clean, locked_directory_ids=frozenset({"disk"}), flushed_kept=clean)


async def session_ends(cluster: Cluster, store: MetadataStore) -> None:
    ear = Ear(store)
    await cluster.expire(store)
    await ear.hears(StoreEvent.SESSION_EXPIRED)
    await store.new_session()


async def in_sync(store: MetadataStore, epoch: int) -> None:
    """One partition has the broker in its ISR since this epoch."""
    topic = await store.create_topic(topic_of(partitions=1))
    state = replace(STATE, isr=(IsrEntry(ONE, BrokerEpoch(epoch)),), elr=(), last_known=())
    await store.write_states(await elected(store), [write_of(topic, 0, -1, state)])


@pytest.mark.parametrize("epoch", [0, 5, 900])
async def test_a_registration_without_its_node_gets_an_epoch_above_all_that_were_and_trusts_nothing_of_before(
    cluster: Cluster, epoch: int
) -> None:
    store, other = await cluster.store(), await cluster.store()
    await in_sync(other, epoch)
    assert await registered(store) == epoch + 1, "the node was never there, or is gone"
    record = (await other.broker_epochs())[ONE]
    assert record == BrokerEpochRecord(
        BrokerEpoch(epoch + 1), ("disk",), *(BrokerEpoch(epoch + 1) for _ in ("unclean_at", "lost_at", "crashed_at"))
    )
    assert (await other.live_brokers())[ONE].broker_epoch == epoch + 1
    await session_ends(cluster, store)
    assert await registered(store) == epoch + 2
    assert (await other.broker_epochs())[ONE].unclean_at == epoch + 1, "a clean one leaves it"


async def test_the_node_of_a_live_broker_is_made_again_at_the_version_it_had(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    await registered(store, clean=False)
    for _ in range(2):
        await session_ends(cluster, store)
        epoch = await registered(store)
    was = (await other.broker_epochs())[ONE]
    assert (was.broker_epoch, was.unclean_at) == (epoch, 0)
    await removed_by_hand(cluster, NODE)
    live = (await other.live_brokers())[ONE]
    for _ in range(2):
        await other.restore_broker_epoch(term, live, was)
        assert (await other.broker_epochs())[ONE] == was


async def test_the_node_of_a_broker_that_is_gone_is_not_made_again(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    await registered(store)
    was, live = (await other.broker_epochs())[ONE], (await other.live_brokers())[ONE]
    await store.stop()
    await removed_by_hand(cluster, NODE)
    with pytest.raises(TidemarkError, match="meanwhile"):
        await other.restore_broker_epoch(term, live, was)
    assert ONE not in await other.broker_epochs()


async def test_a_registration_over_a_node_that_cannot_be_read_trusts_nothing_of_before(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    await registered(store)
    session = other._session
    for broken in (b"", b"[]", codecs.encode({"unclean_at": "x"})):
        await session.commit(lambda multi, broken=broken: multi.set_data(NODE, broken, -1))
        await session_ends(cluster, store)
        epoch = await registered(store)
        record = (await other.broker_epochs())[ONE]
        assert (record.broker_epoch, record.unclean_at, record.lost_at) == (epoch, epoch, epoch)


@pytest.mark.parametrize("by", ["the same", "another"])
@pytest.mark.parametrize("damage", [None, b"", b'{"version":1}', b'{"epoch":-3}'])
async def test_a_controller_is_elected_above_the_epochs_of_states_without_a_readable_controller_epoch(
    cluster: Cluster, damage: bytes | None, by: str
) -> None:
    """Regression: brokers refused the commands of the next controllers, or no controller was elected."""
    store, other = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of(partitions=2))
    term = await elected(store)
    later = replace(STATE, controller_epoch=ControllerEpoch(57))
    await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1, later)])
    if damage is None:
        await removed_by_hand(cluster, "/controller_epoch")
    else:
        await cluster.corrupt("/controller_epoch", damage)
    with raises_code(ErrorCode.CONTROLLER_NOT_ACTIVE):
        await store.write_states(term, [write_of(topic, 0, 0)])
    await store.resign(term)  # as a controller does whose write was refused
    if by == "another":
        await store.stop()
        store = other
    next_term = await store.elect_controller(BrokerId(101), "h:1")
    assert next_term is not None
    assert next_term.epoch > 57
    await store.write_states(next_term, [write_of(topic, 0, 0)])
    assert await store.elect_controller(BrokerId(101), "h:1") == next_term, "the answer may have been lost"
    await store.resign(next_term)
    last_term = await store.elect_controller(BrokerId(101), "h:1")
    assert last_term is not None
    assert last_term.epoch == next_term.epoch + 1


async def test_the_first_controller_of_a_cluster_has_epoch_1(cluster: Cluster) -> None:
    store = await cluster.store()
    await registered(store)
    await store.create_topic(topic_of())
    assert (await elected(store)).epoch == 1


@pytest.mark.parametrize("content", [b"\xff", codecs.encode_broker_epoch(("disk",), *[BrokerEpoch(0)] * 3)])
async def test_the_node_of_a_live_broker_that_was_written_gets_the_version_and_content_that_it_had(
    cluster: Cluster, content: bytes
) -> None:
    """Regression: the controller's writes check the version, so this broker was never elected again."""
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    await registered(store, clean=False)
    await session_ends(cluster, store)
    await registered(store)
    was, live = (await other.broker_epochs())[ONE], (await other.live_brokers())[ONE]
    for _ in range(2):
        await cluster.corrupt(NODE, content)
    assert await other.restore_broker_epoch(term, live, was)
    assert (await other.broker_epochs())[ONE] == was
    assert not await other.restore_broker_epoch(term, live, was)
    await session_ends(cluster, store)
    assert await registered(store) == was.broker_epoch + 1


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_node_of_many_registrations_is_restored_and_no_epoch_is_used_again_if_the_controller_fails_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """Regression: a written node of more than 400 registrations stayed, and a part of the writes led to used epochs."""
    store, other = await cluster.store(), await cluster.store()
    await in_sync(other, 900)
    await registered(store)
    await session_ends(cluster, store)
    epoch = await registered(store)
    term = await elected(other)
    was, live = (await other.broker_epochs())[ONE], (await other.live_brokers())[ONE]
    assert was.unclean_at < was.broker_epoch == epoch

    async def hurt() -> None:
        await (removed_by_hand(cluster, NODE) if is_deleted else cluster.corrupt(NODE, b""))

    await hurt()
    assert await other.restore_broker_epoch(term, live, was)
    assert (await other.broker_epochs())[ONE] == was
    await hurt()
    commit, commits = other._session.commit, []

    async def one_commit(build: Any) -> Any:
        commits.append(build)
        if len(commits) > 1:
            raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no answer")
        return await commit(build)

    monkeypatch.setattr(other._session, "commit", one_commit)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await other.restore_broker_epoch(term, live, was)
    assert (await other.broker_epochs())[ONE].broker_epoch < epoch
    await session_ends(cluster, store)
    assert await registered(store) == epoch + 1


async def test_the_node_of_a_broker_that_has_registered_again_is_left_alone(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    await registered(store)
    was, live = (await other.broker_epochs())[ONE], (await other.live_brokers())[ONE]
    await session_ends(cluster, store)
    epoch = await registered(store)
    assert not await other.restore_broker_epoch(term, live, was)
    assert (await other.broker_epochs())[ONE].broker_epoch == epoch > was.broker_epoch


async def test_a_repeated_registration_whose_node_was_deleted_meanwhile_gets_the_next_epoch(cluster: Cluster) -> None:
    """Regression: the broker kept its epoch, which the new node calls void, so the broker was never elected."""
    store, other = await cluster.store(), await cluster.store()
    epoch = await registered(store)
    assert await registered(store) == epoch, "the answer may have been lost"
    await removed_by_hand(cluster, NODE)
    assert await registered(store) == epoch + 1
    record = (await other.broker_epochs())[ONE]
    assert record.broker_epoch == record.unclean_at == epoch + 1
    assert (await other.live_brokers())[ONE].broker_epoch == epoch + 1


@pytest.mark.parametrize("number", [0, 2_000])
async def test_the_epoch_of_an_edited_registration_is_not_restored(cluster: Cluster, number: int) -> None:
    """Regression: after an edit to a higher number, the controller sent a write for each number up to it. After a lower
    number, the controller created the node again with that version, and the broker registered under a used epoch.
    """
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    await registered(store)
    await session_ends(cluster, store)
    await registered(store)
    was, live = (await other.broker_epochs())[ONE], (await other.live_brokers())[ONE]
    edited = replace(live, broker_epoch=BrokerEpoch(number))
    await cluster.corrupt("/brokers/ids/1", codecs.encode_registration(edited))
    assert not await other.restore_broker_epoch(term, edited, was)
    assert (await other.broker_epochs())[ONE] == was
    assert await registered(store) == was.broker_epoch + 1
    assert (await other.live_brokers())[ONE].broker_epoch == was.broker_epoch + 1

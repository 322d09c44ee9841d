# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a live broker's epoch outlives every manual change of the node."""

from __future__ import annotations

import pytest
from tidemark.controller.epoch_keeper import EpochKeeper
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration
from tidemark.zookeeper import codecs

from tests.fakes.metadata_store import FakeZooKeeper

ONE = BrokerId(1)
NODE = "/brokers/epochs/1"


@pytest.mark.parametrize("content", [b"", codecs.encode_broker_epoch((), *[BrokerEpoch(-1)] * 3)])
@pytest.mark.parametrize("change", ["deleted", "created again", "written"])
async def test_entries_of_a_live_broker_count_while_the_node_of_its_epoch_is_wrong(change: str, content: bytes) -> None:
    """Regression: a node that was deleted and created again voided all entries of before the registration."""
    zookeeper = FakeZooKeeper()
    store = zookeeper.store()
    await store.start()
    term = await store.elect_controller(BrokerId(100), "h:1")
    assert term is not None
    mine = BrokerRegistration(ONE, "h", 1, directory_ids=("d",), boot_id="b")
    for _ in range(2):
        await store.register_broker(mine, clean=True, locked_directory_ids=frozenset({"d"}))
        zookeeper.commit([lambda tree: tree.delete("/brokers/ids/1", -1)])
    epoch = await store.register_broker(mine, clean=True, locked_directory_ids=frozenset({"d"}))
    keeper = EpochKeeper(term, store)
    was = (await keeper.read(await store.live_brokers()))[ONE]
    assert was.unclean_at < was.broker_epoch == epoch == 2
    if change == "written":
        zookeeper.corrupt(NODE, content)
    else:
        zookeeper.commit([lambda tree: tree.delete(NODE, -1)])
    if change == "created again":
        zookeeper.commit([lambda tree: tree.create(NODE, content, 0)])
    found = (await keeper.read(await store.live_brokers()))[ONE]
    assert found == was or found.broker_epoch > epoch, "a higher one may be that of a later registration"
    assert await keeper.restore()
    assert (await store.broker_epochs())[ONE] == was
    assert not await keeper.restore()
    await store.stop()

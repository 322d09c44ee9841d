# SPDX-License-Identifier: Apache-2.0
"""A deleted leaderAndISR node does not make a new partition: its replicas keep their records."""

from __future__ import annotations

import logging

import pytest
from tidemark.model import TopicPartition
from tidemark.runtime.clock import SystemClock

from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.fakes.metadata_store import FakeZooKeeper

WHOLE, GONE, NEW = (TopicPartition("flights", index) for index in range(3))
STATE_OF_GONE = "/brokers/topics/flights/1/leaderAndISR"


async def test_a_deleted_state_differs_from_one_that_never_existed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ensemble = FakeZooKeeper(SystemClock())
    store = ensemble.store()
    await store.start()
    topic = await store.create_topic(topic_of(partitions=3))
    await store.write_states(await elected(store), [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    kept = ensemble.nodes.pop(STATE_OF_GONE)

    unreadable: set[TopicPartition] = set()
    with caplog.at_level(logging.ERROR):
        found = await store.states([WHOLE, GONE, NEW], unreadable=unreadable)
        await store.states([WHOLE, GONE, NEW], unreadable=set())
    assert set(found) == {WHOLE}
    assert unreadable == {GONE}
    (line,) = [vars(record) for record in caplog.records]  # one line, after any number of reads
    assert (line["path"], line["partition"]) == (STATE_OF_GONE, str(GONE))
    assert line["why"] == "its node was deleted manually"

    ensemble.nodes[STATE_OF_GONE] = kept
    unreadable.clear()
    assert set(await store.states([WHOLE, GONE, NEW], unreadable=unreadable)) == {WHOLE, GONE}
    assert not unreadable
    await store.stop()

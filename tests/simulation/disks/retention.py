# SPDX-License-Identifier: Apache-2.0
"""Deletion of records in a simulated cluster: retention, cleaners, and DeleteRecords (rule L1).

As broker/logs/retention.py and broker/logs/log_cleaner.py do it, on every broker independently. Deletion is as in
broker/clients/delete_records.py, without its waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.core.replication import events as ev
from tidemark.model import NO_EPOCH, Offset, TidemarkError
from tidemark.v1 import delete_records_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World

_RETENTION_MS = 150
_PATIENCE_MS = 2500
_LOOK_MS = 20


def keep_house(node: BrokerNode) -> None:
    """Run retention and cleaning, as long as the process lives."""
    recipe, dice = node.world.recipe, node.engine.dice(f"house {node.name}")

    def retain() -> None:
        _let_go(node)
        node.after(_RETENTION_MS, retain)

    def clean() -> None:
        _clean(node)
        node.after(dice.randrange(30, 800 if recipe.files else 400), clean)

    if recipe.retention_bytes >= 0:
        node.after(dice.randrange(_RETENTION_MS), retain)
    if recipe.compacted:
        node.after(dice.randrange(300), clean)


def release(node: BrokerNode, event: ev.LogStartRequested) -> None:
    """Hand the request to the core, and note the deleted records."""
    world, leader = node.world, node.leading(event.partition)
    world.released_front = max(world.released_front, event.start_offset)
    if leader is not None:
        key = (event.partition, leader.state.lineage)
        world.released_fronts[key] = max(world.released_fronts.get(key, 0), event.start_offset)
    node.feed(event)


def _let_go(node: BrokerNode) -> None:
    for partition in node.world.partitions:
        leader = node.leading(partition)
        if leader is None:
            continue
        start = node.logs.expired_until(partition, node.world.recipe.retention_bytes, leader.log.high_watermark)
        if start > leader.log.log_start_offset:
            release(node, ev.LogStartRequested(partition, leader.log.identity, leader.leader_epoch, start))


def _clean(node: BrokerNode) -> None:
    """Ask for the offsets that may be cleaned now, and clean a little later."""
    for partition in node.world.partitions:
        log = node.replica_log(partition)
        if log is not None:
            node.logs.clean_soon(partition, log.high_watermark)


def delete_records(world: World, percent: int) -> None:
    """A client requests the deletion of a share of the committed records, and waits."""
    partition, node = world.partitions[0], world.brokers.get(world.leader())
    if node is None or node.paused:
        return
    shipped = DeleteRecords(node.core.queries, node.feed, node.lease, lambda: node.engine.now)
    try:
        view = node.core.queries.replica(partition)
        before = 0 if view is None else view.log_start_offset
        committed = 0 if view is None else view.high_watermark - before
        asked = -1 if percent == 100 else before + committed * percent // 100
        request = pb.DeleteRecordsRequest(
            topic=partition.topic, partition=partition.partition, before_offset=asked, current_leader_epoch=NO_EPOCH
        )
        target, epoch = shipped._target(partition, request)
    except TidemarkError as error:
        world.tell(f"records are not deleted: {error}")
        return
    view = node.core.queries.replica(partition)
    assert view is not None, "a led partition has a replica"
    world.tell(f"broker {node.broker_id} is to delete records before {target}")
    release(node, ev.LogStartRequested(partition, view.identity, epoch, Offset(target)))
    until_ms = node.engine.now + _PATIENCE_MS

    def look() -> None:
        try:
            start = shipped._start(partition, epoch, target)
        except TidemarkError:
            return
        if start.waits and node.engine.now < until_ms:
            node.after(_LOOK_MS, look)
        elif not start.waits:
            world.tell(f"broker {node.broker_id} acknowledges that records before {target} are deleted")
            for invariant in world.invariants:
                invariant.on_deleted(world, node, partition, target, frozenset(start.behind))

    node.run(look)

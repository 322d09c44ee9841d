# SPDX-License-Identifier: Apache-2.0
"""A bit that flips inside one replica's stored log, with valid batches after the flipped one (rule T5).

A start checks every batch above the recovery point, and finds a flip there. Below that point, or while the process
runs, each receiver refuses the batch by its CRC, and the broker fetches the batch from another replica (rule T6).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.core.messages import LeaderMessage
from tidemark.model import BrokerId, ErrorCode, TopicPartition
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, unpack_envelope
from tidemark.storage.recovery.log_loader import segment_offsets
from tidemark.storage.segments.segment import Segment

from tests.simulation.disks.machine import Machine, StoredLog
from tests.simulation.invariants.replication import CommittedRead
from tests.simulation.records import is_good

if TYPE_CHECKING:
    from tests.simulation.world import World


def flip(world: World, broker: BrokerId) -> None:
    """Flip a bit once between two catch-ups, where another replica in sync has everything.

    Committed batches follow the flipped batch. So the flipped batch never becomes the last of the log, where a start
    would treat the batch as a torn tail.
    """
    machine, dice = world.machines[broker], world.engine.dice("flip")
    dead = broker not in world.brokers
    for partition, log in machine.logs.items():
        found = world.state(partition)
        if world.has_rotted or found is None:
            return
        others = [one for one in found.state.isr if one.broker_id != broker]
        kept = any(world.machines[one.broker_id].keeps_promise_of(one.broker_epoch) for one in others)
        committed = _committed(world, partition, found.state.lineage)
        batches = [
            one
            for one, following in zip(log.batches, log.batches[1:], strict=False)
            if one.envelope.base_offset >= log.start and following.envelope.next_offset <= committed
        ]
        shortest = min(len(world.values(one, partition)) for one in world.assigned(partition))
        found_from = log.recovery_point if dead else shortest  # a start finds the flip, or a follower that lags
        late = [one for one in batches if one.envelope.base_offset >= found_from]
        if not kept or not batches:
            continue
        batch = dice.choice(late if late and dice.random() < 0.7 else batches[-6:])
        offset = batch.envelope.base_offset
        if world.recipe.files:
            # Not only starts read the header, so the flip is in the body.
            first_byte = 0 if dead and offset >= log.recovery_point else ENVELOPE_BYTES
            byte = dice.randrange(first_byte, len(batch.data))
            _flip_bit(_directory(machine, partition), log, batch, byte, 1 << dice.randrange(8))
        log.flipped.add(offset)
        world.has_rotted = True
        world.counts["flips"] += 1
        how = "" if dead else " under the living process"
        world.tell(f"a bit of the batch at {offset} of {partition} flips on the disk of machine {broker}{how}")


def flip_uncommitted(world: World, tries: int = 400) -> None:
    """Flip the newest batch of a leader that no follower has yet, as soon as there is one."""
    if not world.has_rotted and _flip_newest(world, world.leader()):
        world.has_rotted = True
        world.counts.update(["flips", "uncommitted flips"])
    elif tries:
        world.engine.after(1, lambda: flip_uncommitted(world, tries - 1))


def _flip_newest(world: World, broker: BrokerId) -> bool:
    [partition, *_] = world.partitions
    process, found = world.brokers.get(broker), world.state(partition)
    core = process.replica_log(partition) if process is not None else None
    if core is None or found is None or len(found.state.isr) < 2:
        return False
    log = world.machines[broker].logs[partition]
    offset = log.batches[-1].envelope.base_offset if log.batches else -1
    others = [len(world.values(one, partition)) for one in world.assigned(partition) if one != broker]
    if offset < max(core.high_watermark, *others):
        return False
    log.flipped.add(offset)
    world.tell(f"a bit of the uncommitted batch at {offset} flips on the disk of machine {broker}, the leader")
    return True


def as_received(world: World, message: LeaderMessage) -> LeaderMessage:
    """A message as rpc/codecs/replica.py decodes it: a batch with a wrong CRC becomes an error."""
    if not world.counts["flips"] or all(is_good(batch) for chunk in message.chunks for batch in chunk.batches):
        return message
    chunks = [
        chunk
        if all(is_good(batch) for batch in chunk.batches)
        else chunk._replace(batches=(), error=ErrorCode.CORRUPT_BATCH, refused_bytes=chunk.size_bytes)
        for chunk in message.chunks
    ]
    world.counts["flips refused"] += sum(chunk.error is not None for chunk in chunks)
    return replace(message, chunks=tuple(chunks))


def _committed(world: World, partition: TopicPartition, lineage: int) -> int:
    gathered = world.invariants[0]
    assert isinstance(gathered, CommittedRead), "the invariant comes first"
    return len(gathered.of(partition, lineage))


def _directory(machine: Machine, partition: TopicPartition) -> Path:
    assert machine.path is not None, "a world with files has a directory for each machine"
    return machine.path / str(partition)


def _flip_bit(directory: Path, log: StoredLog, batch: Batch, byte: int, bit: int) -> None:
    offset = batch.envelope.base_offset
    first = max(base for base in segment_offsets(directory) if base <= offset)
    before = [one for one in log.batches if first <= one.envelope.base_offset < offset]
    position = sum(len(one.data) for one in before)
    path = Segment(directory, first).log_path
    data = bytearray(path.read_bytes())
    assert unpack_envelope(data, position).base_offset == offset, "the log in memory has the batch at this position"
    with path.open("rb+") as file:
        file.seek(position + byte)
        file.write(bytes([data[position + byte] ^ bit]))

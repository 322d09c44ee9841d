# SPDX-License-Identifier: Apache-2.0
"""Losses of a machine's logs while its process is dead: unsynced bytes, or bytes that a disk did not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.model import BrokerId

from tests.simulation.disks.filed_logs import lose_power_on_files

if TYPE_CHECKING:
    from tests.simulation.world import World


def lose_power(world: World, broker: BrokerId) -> None:
    """Cut the power of a machine, within the budget of tests/simulation/README.md."""
    if not world.may_lose_power():
        return
    world.count_power_loss()
    lost = world.machines[broker].lose_power(counted_on=not world.recipe.group_commit)
    if world.recipe.files:
        lose_power_on_files(world.machines[broker], world.engine.dice("torn"))
    world.tell(f"machine {broker} loses power, and {lost} records with it")


def rot(world: World, broker: BrokerId) -> None:
    """Flip a bit once between two catch-ups, while another in-sync replica is complete.

    No protocol survives a loss of all copies.
    """
    machine, dice = world.machines[broker], world.engine.dice("rot")
    if world.has_rotted:
        return
    for partition, log in machine.logs.items():
        found = world.state(partition)
        others = () if found is None else [one for one in found.state.isr if one.broker_id != broker]
        kept = any(world.machines[one.broker_id].keeps_promise_of(one.broker_epoch) for one in others)
        if kept and log.high_watermark > log.start:
            log.rot(dice.randrange(log.start, log.high_watermark))
            machine.lost = world.has_rotted = True
            world.tell(f"the disk of machine {broker} keeps {partition} up to {log.end}, of {log.high_watermark}")
    if machine.lost and world.recipe.files:
        lose_power_on_files(machine, world.engine.dice("torn"), same_boot=True)


def tear(world: World, broker: BrokerId, batches: int, *, within_a_batch: bool) -> None:
    """One machine loses its last write or two, synced or not; once between two catch-ups, as in `rot`.

    A start finds a cut within a batch. If complete batches are missing, only a comparison with other replicas shows the
    loss (rule T7).
    """
    machine, found = world.machines[broker], world.state(world.partitions[0])
    log = machine.logs.get(world.partitions[0])
    if world.has_rotted or found is None or log is None or not log.batches:
        return
    others = [one for one in (*found.state.isr, *found.state.elr) if one.broker_id != broker]
    if not any(world.machines[one.broker_id].keeps_promise_of(one.broker_epoch) for one in others):
        return
    end = log.end
    log.rot(log.batches[-min(batches, len(log.batches))].envelope.base_offset)
    log.torn, machine.lost, world.has_rotted = within_a_batch, not within_a_batch, True
    if world.recipe.files:
        lose_power_on_files(machine, world.engine.dice("torn"), same_boot=True)
        machine.lost = not log.torn
    world.counts["tails cut"] += 1
    world.tell(f"the log of machine {broker} is cut from {end} to {log.end}, {'torn' if log.torn else 'whole'}")

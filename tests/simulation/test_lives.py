# SPDX-License-Identifier: Apache-2.0
"""Seeded worlds: under any faults, every invariant holds in every state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tidemark.core.replication.follower.partition_follower import PartitionFollower

from tests.simulation.engine import Node
from tests.simulation.invariants.log_start import LatestKept
from tests.simulation.invariants.replication import InvariantError
from tests.simulation.lives import live
from tests.simulation.plan import Item, Plan, draw
from tests.simulation.recipes import RECIPES
from tests.simulation.replay import OtherProcess
from tests.simulation.sound_worlds import sound_worlds
from tests.simulation.test_disks import FLIPPED, REFUSING
from tests.simulation.world import PARTITION, World

WORLDS_PER_RECIPE = 10
WORLDS_OF_TOMBSTONES = 3
"""These worlds are long, so that tombstones reach their age."""
FAULTS = {
    "retained": ["log_start_advanced", "log_reset", "acknowledges that records before"],
    "retained-files": ["log_start_advanced", "acknowledges that records before"],
    "disks-files": ["disk_full", "disk_has_space"],
    "one-directory": ["no log directory is left"],
}
"""Each of these occurs in the first six worlds of these kinds."""
CLEANED = ("compacted", "compacted-files", "tombstones", "tombstones-files")
"""Kinds of worlds with cleaned logs; three worlds of each are checked."""


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in (*FLIPPED, *REFUSING, *CLEANED)])
def test_every_invariant_holds_in_every_world_and_its_faults_occur(name: str, elsewhere: OtherProcess) -> None:
    """The worlds of test_disks.py have the other kinds of faults."""
    told: list[str] = []
    for seed, world in enumerate(sound_worlds(name, WORLDS_PER_RECIPE, elsewhere)):
        if seed < 6:
            told += [sentence for _, sentence in world.story]
    assert [one for one in FAULTS.get(name, ()) if not any(one in sentence for sentence in told)] == []


@pytest.mark.parametrize("name", CLEANED)
def test_every_invariant_holds_and_cleaned_logs_lose_covered_records_and_old_tombstones(
    name: str, elsewhere: OtherProcess
) -> None:
    recipe, records, left, gone = RECIPES[name], 0, 0, 0
    worlds = WORLDS_OF_TOMBSTONES if name.startswith("tombstones") else WORLDS_PER_RECIPE
    for seed, world in enumerate(sound_worlds(name, worlds, elsewhere)):
        if seed >= 3:
            continue
        for broker in world.assigned(PARTITION):
            values = world.values(broker, PARTITION)
            records += len(values)
            left += sum(value is not None for value in values)
        gone += sum(len(one.came_of_age) for one in world.invariants if isinstance(one, LatestKept))
    assert 0 < left < records / 2
    assert (gone > 0) == (recipe.quiet_ms > recipe.delete_retention_ms)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("retained-files", 5083),  # a kill after a truncation, before a checkpoint: its mark names the log start
        ("settings", 5024),  # a late LeaderAndIsr has older settings of the topic than a later one that arrived before
        ("set-back", 297),  # the leader of the older epoch refuses a new controller before the later one's follower
        ("flipped-uncommitted", 20711),  # all is in sync, but the deposed leader has not received its next command
        ("moves-retained", 17871),  # a deposed leader has not received that a reassignment removed its replica
    ],
)
def test_every_invariant_holds_in_worlds_that_failed_once(name: str, seed: int) -> None:
    life = live(draw(seed, RECIPES[name]))
    assert life.failure is None, life.failure


def test_the_same_seed_is_the_same_life() -> None:
    lives = [live(draw(7, RECIPES["harsh"]), tracing=True).world.lines for _ in range(2)]
    assert lives[0]
    assert lives[0] == lives[1]


def test_an_unclean_election_deposes_no_in_sync_replica_without_a_session() -> None:
    """Brokers 0 and 1 run without sessions, in sync with each other, while broker 2 is elected uncleanly.

    Until the two receive the new epoch, they acknowledge records that the election loses; rule F2 permits this.
    """
    items = (
        Item(745, "cut_zookeeper", (-2, "from", 2500)),
        Item(785, "full_disk", (1, 1500)),
        Item(875, "append", (5,)),
        Item(886, "pause", (0, 2500)),
        Item(1097, "crash", (2, 200)),
    )
    life = live(Plan(331, RECIPES["unclean-single"], items))
    assert life.failure is None, life.failure
    assert any("unclean_election (leader 2" in sentence for _, sentence in life.world.story)


@pytest.mark.parametrize("seed", [2507, 2512, 2515])
def test_a_replica_on_its_way_to_another_lineage_falls_with_its_log_and_no_further(seed: int) -> None:
    """Broker 0, leader of lineage 1 without a session, receives lineage 2: its log is truncated below the high
    watermark of lineage 1, and matches lineage 2 only after another round (rule E3)."""
    items = (
        Item(487, "depose", (2000,)),
        Item(760, "crash", (2, 2500)),
        Item(833, "append", (5,)),
        Item(1866, "cut_zookeeper", (1, "to", 700)),
        Item(1950, "power", (1, 1500)),
        Item(2455, "append", (5,)),
        Item(2472, "cut_zookeeper", (0, "to", 2500)),
    )
    life = live(Plan(seed, RECIPES["files-unclean"], items))
    assert life.failure is None, life.failure
    assert any("broker 0: truncated" in line and "below_high_watermark 1" in line for _, line in life.world.story)


def _emptied(seed: int) -> Plan:
    """Broker 2 is down while the others write, and delete all records.

    They are killed, and broker 2 is elected uncleanly.
    """
    appends = (*range(430, 480, 25), *range(700, 1000, 50), *range(2600, 3800, 60))
    faults = (
        Item(520, "crash", (2, 1500)),
        Item(1600, "delete_records", (100,)),
        Item(2000, "crash", (0, 1300)),
        Item(2002, "crash", (1, 1500)),
    )
    items = [Item(at_ms, "append", (5,)) for at_ms in appends]
    recipe = replace(RECIPES["retained-unclean"], retention_bytes=-1)
    return Plan(seed, recipe, tuple(sorted((*items, *faults), key=lambda item: item.at_ms)))


@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_an_empty_replica_starts_again_under_a_stale_leader_of_a_new_lineage(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the replica joins the ISR at the leader's log end, without acknowledged records below the log start."""
    life = live(_emptied(seed))
    assert life.failure is None, life.failure
    assert any("unclean_election (leader 2" in line for _, line in life.world.story)
    begin = PartitionFollower._begin

    def asks_nothing(self: PartitionFollower) -> None:
        self._reconciled |= self.log.quiet and self.log.log_end_offset == self.log.log_start_offset
        begin(self)

    monkeypatch.setattr(PartitionFollower, "_begin", asks_nothing)
    failure = live(_emptied(seed)).failure
    assert failure is not None
    assert failure.name == "START-RELEASED"


@pytest.mark.parametrize(
    ("event", "number"), [("Tick", 60), ("IsrWritten", 2), ("IsrRead", 1), ("LogAppended", 50), ("IsrWriteFailed", 1)]
)
def test_a_violation_at_any_event_of_a_broker_ends_the_world_by_its_name(
    event: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipping drivers catch errors of the core, so that the process ends; the simulator must see them first."""
    counts: Counter[str] = Counter()
    stepped = World.stepped

    def planted(self: World, node: Node, happened: object) -> None:
        stepped(self, node, happened)
        kind = type(happened).__name__
        counts[kind] += 1
        if kind == event and counts[kind] == number:
            raise InvariantError("PLANTED: by this test")

    monkeypatch.setattr(World, "stepped", planted)
    recipe = next(iter(RECIPES))
    for seed in range(1, 9):
        counts.clear()
        life = live(draw(seed, RECIPES[recipe]))
        if counts[event] >= number:
            assert life.failure is not None
            assert life.failure.name == "PLANTED"
            return
    pytest.fail(f"no world has {number} events {event}")

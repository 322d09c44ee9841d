# SPDX-License-Identifier: Apache-2.0
"""The plan of a world, drawn from its seed up front: each produce and each fault is an item that can be omitted."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

BROKERS = (0, 1, 2)
CONTROLLERS = (100, 101)
TOPICS = ("make_topic", "move_topic", "delete_topic", "evolve_topic", "configure_topic")
ROWS = ("write_row", "read_rows")
HOW_ROWS_ARE_WRITTEN = ("newest", "newest", "earliest", "later", "other", "bytes")
BY_HAND = ("hurt_node", "set_back", "unregister")
OF_A_BROKER = frozenset({"crash", "pause", "shutdown", "power", "rot", "flip", "flip_alive", "flip_uncommitted"}) | {
    "slow_disk",
    "full_disk",
    "failed_disk",
    "failed_sync",
    "failed_read",
}
"""Kinds of faults that choose a broker and a duration."""
START_MS = 400
"""The time by which the cluster serves."""


@dataclass(frozen=True, slots=True)
class Item:
    """One action from outside; `args` are the arguments of this kind's method of `World`."""

    at_ms: int
    kind: str
    args: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(str(arg) for arg in self.args)})"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A kind of world: settings, fault rates, and the weight of each kind of fault."""

    name: str = "mixed"
    min_isr: int = 2
    unclean: bool = False
    group_commit: bool = False
    duration_ms: int = 3500
    produces: int = 30
    idempotent: int = 20
    producers: int = 1
    """Idempotent producers, each with at most one batch in flight."""
    faults: int = 9
    lost_answers: float = 0.05
    repeated_calls: float = 0.05
    late_calls: float = 0.05
    lost_replies: float = 0.05
    checkpoint_ms: int = 400
    brokers: tuple[int, ...] = BROKERS
    replicas: tuple[int, ...] = BROKERS
    """The first assigned replicas of the topic's partition."""
    compacted: bool = False
    delete_retention_ms: int = 60_000
    """Retention of tombstones, in worlds with a compacted topic."""
    retention_bytes: int = -1
    segment_bytes: int = 2500
    """Size of a segment, on files in worlds that remove records: a few batches."""
    quiet_ms: int = 300
    """Duration of peace at the end of a world."""
    directories: int = 2
    """Log directories of each broker; the partition lies in one of them."""
    files: bool = False
    """The shipping storage on real files; else logs in memory."""
    read_ms: int = 60
    """Time from one read of a consumer to its next."""
    typed: bool = False
    """Whether the other topic, which is created and deleted, has a schema."""
    near: bool = False
    """Whether a consumer reads from followers too."""
    election_wait_ms: int = 1500
    """leader.election.wait.ms; 0: the controller awaits no other log, so an election by a wrong log shows."""
    torn: float = 1.0
    """Fraction of cut tails that end within a batch, which a start finds; the others lack complete batches."""
    transactions: int = 0
    """Steps of producers that write in transactions; in worlds with files only."""
    weights: Mapping[str, int] = field(default_factory=lambda: dict(MIXED))

    @property
    def topic_configs(self) -> dict[str, str]:
        """Settings of the topic that records are written to."""
        configs = {"min.insync.replicas": str(self.min_isr)}
        if self.unclean:
            configs["unclean.leader.election.enable"] = "true"
        if self.group_commit:
            configs["flush.policy"] = "group-commit"
        deletes = self.retention_bytes >= 0
        if self.compacted:
            configs["cleanup.policy"] = "compact,delete" if deletes else "compact"
        if deletes:
            configs["retention.bytes"] = str(self.retention_bytes)
        if self.compacted or deletes:
            configs |= {"segment.bytes": str(self.segment_bytes), "file.delete.delay.ms": "0"}
        return configs


@dataclass(frozen=True, slots=True)
class Plan:
    """All items of a world; each run of a plan is identical."""

    seed: int
    recipe: Recipe
    items: tuple[Item, ...]


MIXED: dict[str, int] = {
    "crash": 4,
    "power": 2,
    "crash_all": 1,
    "depose": 3,
    "elect": 2,
    "pause": 3,
    "cut": 4,
    "isolate": 2,
    "cut_zookeeper": 3,
    "cut_controller": 3,
    "break": 2,
    "slow_disk": 1,
    "failed_disk": 1,
    "full_disk": 1,
    "controller_crash": 1,
    "controller_pause": 1,
    "lost_answers": 2,
}


def draw(seed: int, recipe: Recipe) -> Plan:
    """The plan of a seed and a recipe, always the same one."""
    dice = random.Random(f"plan {recipe.name} {seed}")
    items = []
    for n in range(recipe.produces):
        to = dice.choice(recipe.brokers) if dice.random() < 0.15 else -1
        args = (f"v{n}", dice.choice((1, 1, 2, 3)), dice.choice((-1, -1, 1, 0)), to)
        items.append(Item(START_MS + dice.randrange(recipe.duration_ms), "produce", args))
    for _ in range(recipe.idempotent):
        items.append(
            Item(
                START_MS + dice.randrange(recipe.duration_ms),
                "append",
                (5 + (dice.randrange(recipe.producers) if recipe.producers > 1 else 0),),
            )
        )
    kinds = sorted(recipe.weights)
    for _ in range(recipe.faults):
        kind = dice.choices(kinds, [recipe.weights[one] for one in kinds])[0]
        at_ms = START_MS + dice.randrange(recipe.duration_ms)
        items.append(Item(at_ms, kind, _arguments(kind, dice, recipe)))
    for _ in range(recipe.transactions):
        at_ms = START_MS + dice.randrange(recipe.duration_ms)
        items.append(Item(at_ms, "transact", (dice.choice((20, 21)),)))
    return Plan(seed, recipe, tuple(sorted(items, key=lambda item: (item.at_ms, item.kind, item.args))))


def _arguments(kind: str, dice: random.Random, recipe: Recipe) -> tuple[int | str, ...]:
    """Broker -2: the leader at that time; a link from a broker to itself is a link to the next broker."""
    broker = dice.choice((*recipe.brokers, -2))
    other = dice.choice([one for one in (*recipe.brokers, -2) if one != broker])
    long_ms = dice.choice((30, 200, 700, 1500, 2500))
    if kind in ("reassign", "cancel", "drop_moves", "add_partition", "remove_partition", *TOPICS, *ROWS, *BY_HAND):
        return _requested(kind, dice, recipe)
    if kind in OF_A_BROKER:
        return (-2 if kind == "flip_alive" else broker, long_ms)  # consumers mostly read from the leader
    match kind:
        case "crash_all" | "tear_all":
            return _all_killed(kind, dice, recipe)
        case "cut" | "isolate" | "break":
            return (broker, other, long_ms)[: 2 if kind == "break" else 3]
        case "cut_zookeeper" | "cut_controller":
            return (broker, dice.choice(("to", "from", "both")), long_ms)
        case "elect" | "elect_last_known":
            return ("preferred" if kind == "elect" else "last_known",)
        case "depose":
            return (dice.choice((700, 1200, 2000)),)
        case "controller_crash" | "controller_pause":
            return (dice.choice(CONTROLLERS), long_ms)
        case "settings":
            return (dice.choice(("os", "group-commit")), dice.choice((2, 2, 3)))
        case "delete_records":
            return (dice.choice((30, 60, 100)),)
        case "lost_answers":
            return (dice.choice((20, 50, 90)), dice.choice((200, 600, 1200)))
    raise AssertionError(f"no such fault: {kind}")


def _all_killed(kind: str, dice: random.Random, recipe: Recipe) -> tuple[int | str, ...]:
    """How long each broker is down; `tear_all` also cuts the log of the leader, which is the first of them."""
    if kind == "crash_all":
        return (dice.choice((20, 300, 900)), dice.choice((20, 300, 900)), dice.choice((20, 300, 900)))
    times_ms = (dice.choice((20, 300)), *(dice.choice((20, 300, 700, 1100)) for _ in recipe.brokers[1:]))
    return (dice.choice((1, 1, 2, 4)), int(dice.random() < recipe.torn), *times_ms)


def _replicas(dice: random.Random, recipe: Recipe) -> str:
    """At least one replica more than a power loss may take."""
    count = dice.randint(recipe.min_isr, min(len(recipe.brokers), 3))
    return ",".join(str(one) for one in dice.sample(recipe.brokers, count))


def _requested(kind: str, dice: random.Random, recipe: Recipe) -> tuple[int | str, ...]:
    """Arguments of an operator's request: see `admin_requests`."""
    match kind:
        case "reassign":
            return (_replicas(dice, recipe), dice.choice((0, 0, 5000)))
        case "add_partition" | "make_topic" | "move_topic":
            return (_replicas(dice, recipe),)
        case "remove_partition":
            return (dice.choice((0, 1)),)
        case "hurt_node":
            return (dice.choice(("garbage", "deleted")), dice.choice((1, 1, 2)))
        case "unregister" | "read_rows":
            return (dice.choice((*recipe.brokers, -2)),)
        case "write_row":
            return (dice.choice((*recipe.brokers, -2)), dice.choice(HOW_ROWS_ARE_WRITTEN))
    return ()

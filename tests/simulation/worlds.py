"""Lives of a cluster: what clients and misfortune do in one seeded world."""

from __future__ import annotations

from tidemark.core.effects import ProduceResult
from tidemark.model import BrokerId

from tests.simulation.harness import PARTITION, World, make_batch
from tests.simulation.old_invariants import InvariantError

PRODUCER_ID = 5


class IdempotentClient:
    """Sends batch after batch and each again until it is acknowledged."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.count = count
        self.sent = 0
        self.offsets: list[int] = []
        self._send()

    def _send(self) -> None:
        batch = make_batch(f"p{self.sent}", sequence=self.sent, producer_id=PRODUCER_ID)
        self.world.produce(batch, -1, self._answered)

    def _answered(self, result: ProduceResult) -> None:
        if result.error is None:
            self.offsets.append(result.base_offset)
            self.sent += 1
            if self.sent >= self.count:
                return
        elif not result.error.retriable:
            raise InvariantError(f"EXACTLY-ONCE-APPEND: batch {self.sent} was refused: {result.error}")
        self.world.after(self.world.random.choice((1, 20, 60)), self._send)


def live_through(world: World, *, duration_ms: int = 4000, misfortunes: int = 8) -> None:
    """One world: load, misfortunes, then peace until everything is in sync again."""
    rng = world.random
    world.run(200)
    client = IdempotentClient(world, 40)
    for n in range(40):
        acks = rng.choice((-1, -1, 1, 0))
        batch = make_batch(f"v{n}", records=rng.choice((1, 1, 2, 3)))
        broker = BrokerId(rng.randrange(3)) if rng.random() < 0.15 else None
        world.at(200 + rng.randrange(duration_ms), lambda b=batch, a=acks, to=broker: world.produce(b, a, broker=to))
    for _ in range(misfortunes):
        world.at(200 + rng.randrange(duration_ms), lambda: _misfortune(world))
    world.run(200 + duration_ms)
    make_peace(world)
    _check_the_end(world, client)


def _misfortune(world: World) -> None:
    rng = world.random
    broker = BrokerId(rng.randrange(3))
    other = BrokerId((broker + rng.choice((1, 2))) % 3)
    kind = rng.choice(("crash", "crash", "expire", "break", "cut", "cut", "move", "move", "all"))
    world.trace(f"{world.now:6} == {kind} {broker} {other}")
    if kind == "crash":
        world.crash(broker)
        world.after(rng.choice((30, 200, 1500)), lambda: world.start(broker))
    elif kind == "all":
        for one in range(3):
            world.crash(BrokerId(one))
            world.after(rng.choice((30, 600, 900)), lambda b=one: world.start(BrokerId(b)))
    elif kind == "expire":
        world.expire(broker)
    elif kind == "move":
        world.controller_runs(move=True)
    else:
        leader = world.store.nodes[PARTITION].state.leader
        other = leader if leader >= 0 else other
        _break_streams(world, broker, other)
        if kind == "cut":
            world.cut.add((broker, other))
            world.after(rng.choice((100, 1300, 2500)), lambda: world.cut.discard((broker, other)))


def _break_streams(world: World, follower: BrokerId, leader: BrokerId) -> None:
    process = world.running.get(follower)
    stream = process.outbound.get(leader) if process is not None else None
    if stream is not None:
        stream.break_()


def make_peace(world: World) -> None:
    """Everybody comes back and catches up."""
    world.cut.clear()
    for broker in range(3):
        world.start(BrokerId(broker))
    world.lost_answers = 0.0
    for _ in range(40):
        world.run(world.now + 500)
        if len(world.store.nodes[PARTITION].state.isr) == 3 and _all_equal(world):
            return
    node = world.store.nodes[PARTITION]
    raise InvariantError(f"LIVENESS: not in sync again: {node}, {_ends(world)}")


def _ends(world: World) -> list[int]:
    return [world.disk(BrokerId(broker), PARTITION).end for broker in range(3)]


def _all_equal(world: World) -> bool:
    return len({tuple(world.disk(BrokerId(broker), PARTITION).values) for broker in range(3)}) == 1


def _check_the_end(world: World, client: IdempotentClient) -> None:
    """ACKED-READABLE and EXACTLY-ONCE-APPEND, of the whole life."""
    for _ in range(20):
        if client.sent >= client.count:
            break
        world.run(world.now + 500)
    if client.sent < client.count:
        raise InvariantError(f"LIVENESS: the producer got {client.sent} of {client.count} through")
    world.run(world.now + 1500)
    values = world.values_of_leader()
    for offset, value in world.acked[PARTITION]:
        if offset >= len(values) or values[offset] != value:
            raise InvariantError(f"ACKED-READABLE: {value} was acknowledged at {offset}")
    mine = [value for value in values if value.startswith("p")]
    if mine != [f"p{n}.0" for n in range(client.count)]:
        raise InvariantError(f"EXACTLY-ONCE-APPEND: {mine}")

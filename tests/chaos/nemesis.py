# SPDX-License-Identifier: Apache-2.0
"""The faults of a round, drawn from a seed: injects, ends and reports each of them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import TidemarkError

from tests.chaos.arena.arena import START_S, STOP_S, Arena
from tests.chaos.arena.cut_tails import CutTails
from tests.chaos.arena.disks import SMALL
from tests.chaos.arena.names import BROKERS, CONTROLLERS, ZOOKEEPER
from tests.chaos.arena.proxy import ANY_CALLER, Trouble
from tests.chaos.arena.rotation import Rotation

SHORT_S = (0.2, 1.5)
LONG_S = (1.0, 5.0)
_SERVING_S = 5.0
_TAIL_LINES = 30


class Nemesis:
    """Injects one fault, sometimes two at the same time, waits, ends the faults, and continues."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self._arena = arena
        self.seed = seed
        self._chance = random.Random(seed)
        self._failing = self._chance.choice(BROKERS)
        self.told: list[str] = []
        self.killed: list[tuple[float, str]] = []
        """Time of each kill (time.monotonic, seconds), and the killed broker."""
        self.ended: list[str] = []
        """Each process that ended by itself, which is a defect: the last fault, exit status, and end of its log."""
        self._faults: tuple[Callable[[], Iterator[str]], ...] = (
            self._kill_a_broker,
            self._kill_a_broker,
            self._kill_every_broker,
            self._kill_everything,
            self._shut_a_broker_down,
            self._kill_a_controller,
            self._kill_zookeeper,
            self._stop_a_broker,
            self._stop_a_broker,
            self._stop_a_controller,
            self._stop_zookeeper,
            self._stop_everything,
            self._cut_a_broker_off_zookeeper,
            self._cut_two_brokers,
            self._cut_one_way,
            self._slow_links,
            self._fill_a_disk,
            self._break_a_disk,
            self._flip_a_bit,
            CutTails(arena.disks.seen_from_here, self._chance, self._kill_now, self._bring_back).strike,
        )

        self._rotations: tuple[Callable[[], Iterator[str]], ...] = ()
        if arena.secure:
            self._rotation = Rotation(arena.cluster, arena.slowness)
            self._rotations = (self._renew_certificates, self._replace_the_authority, self._renew_a_token)
            self._faults += self._rotations

    def strike_until(self, until_s: float) -> None:
        """Inject one fault after the other; all processes serve again when this returns."""
        for kind in self._chance.sample(self._rotations, len(self._rotations)):
            self._strike([contextmanager(kind)()])
        while time.monotonic() < until_s:
            kinds = self._chance.sample(self._faults, 2 if self._chance.random() < 0.2 else 1)
            self._strike([contextmanager(kind)() for kind in dict.fromkeys(kinds)])
            time.sleep(self._chance.uniform(0.3, 2.0))
        self._arena.network.heal()
        self._start_ended_processes()

    def _strike(self, faults: list[AbstractContextManager[str]]) -> None:
        with ExitStack() as struck:
            for fault in faults:
                self.told.append(struck.enter_context(fault))
        self._start_ended_processes()

    def _wait(self, bounds_s: tuple[float, float]) -> None:
        time.sleep(self._chance.uniform(*bounds_s))

    def _start_ended_processes(self) -> None:
        """Start a process again that ended by itself, as Kubernetes does."""
        cluster = self._arena.cluster
        for name in cluster.names:
            process = cluster.process(name)
            if process.running:
                continue
            self.ended.append(
                f"{name} had ended by itself, with status {process.exit_status}, "
                f"after: {'; '.join(self.told[-2:])}; its log ends with:\n{process.tail(_TAIL_LINES)}"
            )
            self.told.append(f"{name} had ended by itself")
            self.killed.append((time.monotonic(), name))
            cluster.restart(name, timeout_s=START_S * self._arena.slowness)

    # -- processes

    def _kill_a_broker(self) -> Iterator[str]:
        yield from self._kill(self._chance.choice(BROKERS))

    def _kill_a_controller(self) -> Iterator[str]:
        yield from self._kill(self._chance.choice(CONTROLLERS))

    def _kill(self, name: str) -> Iterator[str]:
        self._kill_now(name)
        yield f"kill -9 {name}"
        self._wait(SHORT_S)
        self._bring_back(name)

    def _kill_now(self, *names: str) -> None:
        """Signal all processes before the wait for the first end, so that none ends much before the others."""
        cluster = self._arena.cluster
        for name in names:
            cluster.process(name).signal(signal.SIGKILL)
        for name in names:
            cluster.kill(name)
            self.killed.append((time.monotonic(), name))

    def _shut_a_broker_down(self) -> Iterator[str]:
        """Stop a broker by a controlled shutdown."""
        name = self._chance.choice(BROKERS)
        was_full = name == SMALL and self._arena.disks.is_full
        try:
            self._arena.cluster.terminate(name, STOP_S * self._arena.slowness)
        except TidemarkError:
            # A broker that had only begun to start does not listen yet. With a full disk, it cannot write its last
            # files.
            if self._arena.cluster.process(name).exit_status != -signal.SIGTERM and not was_full:
                raise
        self.killed.append((time.monotonic(), name))  # a slow process is killed in the end
        yield f"SIGTERM {name}"
        self._bring_back(name)

    def _kill_every_broker(self) -> Iterator[str]:
        self._kill_now(*BROKERS)
        yield "kill -9 of every broker"
        for name in self._chance.sample(BROKERS, len(BROKERS)):
            self._bring_back(name)

    def _kill_everything(self) -> Iterator[str]:
        """Kill all processes, as a machine that reboots, except that the page cache stays; its clients continue."""
        cluster = self._arena.cluster
        _signal(cluster.zookeeper, signal.SIGKILL)
        self._kill_now(*cluster.names)
        cluster.zookeeper.kill()
        yield "kill -9 of everything"
        self._wait(SHORT_S)
        names = (*cluster.names, ZOOKEEPER)
        for name in self._chance.sample(names, len(names)):
            if name == ZOOKEEPER:
                self._start_zookeeper()
            elif not cluster.process(name).running:
                cluster.process(name).start()
        try:
            cluster.wait_until_serving(timeout_s=_SERVING_S * self._arena.slowness)
        except TidemarkError:
            if not all(cluster.process(name).running for name in cluster.names):
                raise

    def _bring_back(self, name: str) -> None:
        """Restart a process; it need not serve in time while another fault lasts."""
        try:
            self._arena.cluster.restart(name, timeout_s=2.0 * self._arena.slowness)
        except TidemarkError:
            if not self._arena.cluster.process(name).running:
                raise

    def _kill_zookeeper(self) -> Iterator[str]:
        zookeeper = self._arena.cluster.zookeeper
        zookeeper.kill()
        yield "kill -9 zookeeper"
        self._wait(LONG_S)
        self._start_zookeeper()

    def _start_zookeeper(self) -> None:
        """Start ZooKeeper, unless the end of another fault has done so."""
        if not self._arena.cluster.zookeeper.running:
            self._arena.cluster.zookeeper.start(START_S * self._arena.slowness)

    def _stop_a_broker(self) -> Iterator[str]:
        yield from self._stop(self._chance.choice(BROKERS))

    def _stop_a_controller(self) -> Iterator[str]:
        yield from self._stop(self._chance.choice(CONTROLLERS))

    def _stop(self, name: str) -> Iterator[str]:
        self._arena.cluster.pause(name)
        yield f"SIGSTOP {name}"
        self._wait((0.5, 9.0))
        self._arena.cluster.resume(name)

    def _stop_zookeeper(self) -> Iterator[str]:
        zookeeper = self._arena.cluster.zookeeper
        if not zookeeper.running:
            yield "zookeeper is dead already"
            return
        _signal(zookeeper, signal.SIGSTOP)
        yield "SIGSTOP zookeeper"
        self._wait((0.5, 8.0))
        _signal(zookeeper, signal.SIGCONT)

    def _stop_everything(self) -> Iterator[str]:
        """Stop all processes, as a machine that is paused; its clients continue."""
        cluster, zookeeper = self._arena.cluster, self._arena.cluster.zookeeper
        for name in cluster.names:
            cluster.pause(name)
        _signal(zookeeper, signal.SIGSTOP)
        yield "SIGSTOP everything"
        self._wait((0.5, 6.0))
        for name in cluster.names:
            cluster.resume(name)
        _signal(zookeeper, signal.SIGCONT)

    # -- disks

    def _fill_a_disk(self) -> Iterator[str]:
        self._arena.disks.fill()
        yield f"the second disk of {SMALL} is full"
        self._wait(LONG_S)
        self._arena.disks.make_room()

    def _break_a_disk(self) -> Iterator[str]:
        """The broker takes its replicas there offline; they are online again after a restart.

        The ISR entries of that broker are void then (rule T1). So the disks of only one broker fail in a round: a
        partition of two replicas would need an unclean election if both failed, one soon after the other.
        """
        name = self._failing
        self._arena.disks.break_second(name)
        yield f"the second disk of {name} fails"
        self._wait(LONG_S)
        self._arena.disks.mend()
        self._kill_now(name)
        self._bring_back(name)

    def _flip_a_bit(self) -> Iterator[str]:
        """Flip a bit in the first half of a sealed segment; the broker repairs it."""
        name = self._chance.choice(BROKERS)
        flipped = self._arena.disks.flip_a_bit(name, self._chance)
        yield f"a bit flips in {flipped} of {name}" if flipped else f"no segment of {name} is long enough to rot"
        self._wait(SHORT_S)

    # -- certificates and tokens

    def _renew_certificates(self) -> Iterator[str]:
        yield self._rotation.renew_certificates()

    def _replace_the_authority(self) -> Iterator[str]:
        yield self._rotation.replace_authority()

    def _renew_a_token(self) -> Iterator[str]:
        yield self._rotation.renew_token()

    # -- the network

    def _cut_a_broker_off_zookeeper(self) -> Iterator[str]:
        name = self._chance.choice(BROKERS)
        yield from self._trouble(f"{name} cut off zookeeper", Trouble(silent=True), (name, ZOOKEEPER))

    def _cut_two_brokers(self) -> Iterator[str]:
        one, other = self._chance.sample(BROKERS, 2)
        trouble = self._chance.choice((Trouble(silent=True), Trouble(refuse=True)))
        yield from self._trouble(f"{one} and {other} cut: {_kind(trouble)}", trouble, (one, other), (other, one))

    def _cut_one_way(self) -> Iterator[str]:
        one, other = self._chance.sample((*BROKERS, *CONTROLLERS), 2)
        yield from self._trouble(f"nothing from {one} to {other}", Trouble(silent=True), (one, other))

    def _slow_links(self) -> Iterator[str]:
        name = self._chance.choice((*BROKERS, ZOOKEEPER))
        delay_s = self._chance.choice((0.01, 0.05, 0.2))
        slow = Trouble(delay_s=delay_s)
        yield from self._trouble(f"{name} {delay_s * 1000:.0f} ms away", slow, (ANY_CALLER, name), (name, ANY_CALLER))

    def _trouble(self, story: str, trouble: Trouble, *ways: tuple[str, str]) -> Iterator[str]:
        network = self._arena.network
        for source, sink in ways:
            network.disturb(source, sink, trouble)
        yield story
        self._wait((0.5, 9.0))
        for source, sink in ways:
            network.end(source, sink)


def _kind(trouble: Trouble) -> str:
    return "refused" if trouble.refuse else "silent"


def _signal(zookeeper: ZooKeeperProcess, number: signal.Signals) -> None:
    """Signal ZooKeeper, unless it has been killed meanwhile."""
    if zookeeper.running:
        os.kill(zookeeper.pid, number)

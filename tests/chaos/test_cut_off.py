# SPDX-License-Identifier: Apache-2.0
"""A machine with a broker or the active controller is disconnected.

Checks the wait of producers, and acknowledged records.

Proxies hold back every byte from and to the machine; no connection is reset. `python -m tests.chaos.nodes` cuts off a
whole machine, with a server of the ZooKeeper ensemble.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.cluster import ADMIN

from tests.chaos.arena.arena import Arena
from tests.chaos.arena.disks import Disks
from tests.chaos.arena.names import BROKERS, CONTROLLERS
from tests.chaos.arena.proxy import ANY_CALLER, Trouble
from tests.chaos.machine import computing_s, other_load, slowness

TOPIC = "cut"
PARTITIONS = 3
SESSION_S, MORE_S = 6.0, 2.0
"""The session of a broker, and the time on an idle machine until a new leader works."""
DELIVERY_MS = 60_000
SETTLED_WITHIN_S = 30.0


class Account(threading.Thread):
    """A producer of one partition that waits for each record."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        super().__init__(name=f"producer of {partition}", daemon=True)
        self.partition = partition
        self.offsets: list[int] = []
        self.longest_s = 0.0
        self.failure: Exception | None = None
        self._servers = bootstrap
        self._enough = threading.Event()

    def run(self) -> None:
        """Send until `end`."""
        try:
            with Producer(self._servers, delivery_timeout_ms=DELIVERY_MS) as producer:
                while not self._enough.wait(0.01):
                    began_s = time.monotonic()
                    where = producer.send(TOPIC, b"%d" % len(self.offsets), partition=self.partition).result()
                    if self.offsets:  # the first record waits for a connection, too
                        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                    self.offsets.append(where.offset)
        except Exception as failure:  # noqa: BLE001 - the waiting test reports the error
            self.failure = failure

    def wait_for_more(self, count: int) -> None:
        """Wait until this number of further records is acknowledged; raises the error of the first failed record."""
        wanted = len(self.offsets) + count
        while len(self.offsets) < wanted:
            assert self.failure is None, self.failure
            time.sleep(0.02)

    def end(self) -> None:
        """Stop sending."""
        self._enough.set()
        self.join()
        assert self.failure is None, self.failure


@contextmanager
def silent(arena: Arena, names: Sequence[str]) -> Iterator[None]:
    """Drop all bytes to and from these processes."""
    for name in names:
        arena.network.disturb(ANY_CALLER, name, Trouble(silent=True))
        arena.network.disturb(name, ANY_CALLER, Trouble(silent=True))
    yield
    arena.network.heal()


def ends_beyond(bootstrap: str, last: Mapping[int, int]) -> dict[int, int]:
    """The high watermarks once they are beyond these offsets, or as they are after a while.

    A leader that was deposed while it was disconnected states an older high watermark until it receives the new epoch.
    """
    deadline_s = time.monotonic() + SETTLED_WITHIN_S
    while True:
        with RangeReader(bootstrap, deadline_s=60) as reader:
            ends = {partition: bounds.latest for partition, bounds in reader.bounds(TOPIC, sorted(last)).items()}
        if all(ends[partition] > offset for partition, offset in last.items()) or time.monotonic() > deadline_s:
            return ends
        time.sleep(0.1)


def said(directory: Path, names: Sequence[str]) -> str:
    """The last lines of the logs of these processes."""
    logs = [(directory / "logs" / f"{name}.log").read_text(encoding="utf-8").splitlines() for name in names]
    return "\n".join(line for log in logs for line in log[-40:])


@pytest.mark.alone
@pytest.mark.timeout(240)
@pytest.mark.parametrize("with_controller", [False, True], ids=["a broker", "a broker and the active controller"])
def test_producers_of_a_partitioned_leader_wait_at_most_a_session_and_two_seconds(
    tmp_path: Path, with_controller: bool
) -> None:
    pause_s_max = SESSION_S + MORE_S * slowness(other_load(), computing_s())
    with Disks(tmp_path) as disks, Arena(tmp_path, disks) as arena:
        with AdminClient(admin=arena.cluster.address(ADMIN)) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
            active = f"controller-{admin.describe_cluster().view.controller_id}"
        assert active in CONTROLLERS
        accounts = [Account(arena.bootstrap, partition) for partition in range(PARTITIONS)]
        for account in accounts:
            account.start()
        for account in accounts:
            account.wait_for_more(50)
        with silent(arena, (BROKERS[0], active) if with_controller else (BROKERS[0],)):
            for account in accounts:
                account.wait_for_more(50)
        for account in accounts:
            account.end()
        ends = ends_beyond(arena.bootstrap, {account.partition: account.offsets[-1] for account in accounts})
    longest_s = [round(account.longest_s, 2) for account in accounts]
    assert max(longest_s) > 1, "the cut was noticed"
    assert max(longest_s) <= pause_s_max, f"{longest_s}; the controllers' logs:\n{said(tmp_path, CONTROLLERS)}"
    for account in accounts:
        assert account.offsets == sorted(set(account.offsets))
        assert ends[account.partition] > account.offsets[-1]

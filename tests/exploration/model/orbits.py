# SPDX-License-Identifier: Apache-2.0
"""Stores processes under numbers: six consecutive numbers for processes that differ only in the names of the brokers.

Only one of the six is written, under names that follow from the process's knowledge of each broker. If the process
knows the same of both other brokers, two forms are written, and a choice independent of names selects one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader

from tests.exploration.model.frozen import BROKERS, ONE_AFTER_ANOTHER, ORDERS, RENAMES, freeze, thaw

EACH: Final = len(ORDERS)
BACK: Final = tuple(after.index(0) for after in ONE_AFTER_ANOTHER)


class Orbits:
    """The numbers of processes. Process 6 n + k is process 6 n under the names `RENAMES[k]`."""

    def __init__(self) -> None:
        self._orbits: dict[bytes, int] = {}
        self._frozen: list[bytes] = []
        self._same: list[int] = []

    def __len__(self) -> int:
        return EACH * len(self._frozen)

    def number(self, core: BrokerCore) -> int:
        """The number of a process, equal for equal ones; the least one if two names do not change the process."""
        ways = _ways(core)
        written = [freeze(core, RENAMES[way]) for way in ways]
        first = min(written)
        way = ways[written.index(first)]
        key = blake2b(first, digest_size=16).digest()
        orbit = self._orbits.setdefault(key, len(self._frozen))
        if orbit == len(self._frozen):
            self._frozen.append(first)
            alike = len(ways) > 1 and written[0] == written[1]
            self._same.append(ONE_AFTER_ANOTHER[BACK[ways[0]]][ways[1]] if alike else 0)
        return self._least(orbit, BACK[way])

    def twin(self, number: int, which: int) -> int:
        """The number of the same process if the brokers had other names."""
        orbit, way = divmod(number, EACH)
        return self._least(orbit, ONE_AFTER_ANOTHER[way][which])

    def core(self, number: int) -> BrokerCore:
        """The core of a process, for further steps."""
        orbit, way = divmod(number, EACH)
        return thaw(self._frozen[orbit], RENAMES[way])

    def _least(self, orbit: int, way: int) -> int:
        return EACH * orbit + min(way, ONE_AFTER_ANOTHER[self._same[orbit]][way])


def _ways(core: BrokerCore) -> list[int]:
    """Numbers of the names under which a process is written: itself first, then the others by its knowledge of them."""
    me = BROKERS.index(core._ctx.broker_id)
    one, other = (place for place in range(len(BROKERS)) if place != me)
    of_one, of_other = (_known_of(core, place) for place in (one, other))
    if of_one > of_other:
        one, other = other, one
    orders = [(me, one, other), (me, other, one)] if of_one == of_other else [(me, one, other)]
    return [ORDERS.index(order) for order in orders]


def _known_of(core: BrokerCore, place: int) -> tuple[Any, ...]:
    """A fact that a process knows of a broker, without a name."""
    broker, ctx, streams = BROKERS[place], core._ctx, core._streams
    registration = ctx.registrations.get(broker)
    epoch = -1 if registration is None else registration.broker_epoch
    about = [epoch, broker in ctx.suspected, broker in streams._links, broker in streams._sessions]
    for replica in core._replicas.values():
        role = replica.role
        if isinstance(role, PartitionFollower):
            about.append(role.leader == broker)
        elif isinstance(role, PartitionLeader):
            progress = role.followers.get(broker)
            about += [broker in role._outside, -1 if progress is None else progress.log_end_offset]
    return tuple(about)

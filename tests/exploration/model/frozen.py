# SPDX-License-Identifier: Apache-2.0
"""Converts a broker core to a plain value, and back: equal cores give equal values, after any histories.

A value is nested tuples of ints and strings. Objects of the core are numbered in the order of the traversal, so a cycle
is a number. Three things are written in one normal form, since nothing in the protocol depends on them:

- time: every clock reads either *just now* or *long ago* (see `aged`), so a state does not hold a time. A leader's
    notes on a follower are dropped while that follower is caught up. Every tick checks every led partition, because the
    list of partitions to check only saves work;
- order: sets, dictionaries keyed by broker, ISR and ELR are sorted (the explorer's controller tries every order);
- names: broker ids are the only ints of `BROKERS`, so `thaw` can give every broker another name.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import permutations
from typing import Any, Final

from tidemark.core import messages as msg
from tidemark.core.config import ReplicationConfig
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.context import LONG_AGO_MS, BrokerContext
from tidemark.core.replication.follower.leader_link import LeaderLink
from tidemark.core.replication.follower.partition_follower import PartitionFollower, Phase
from tidemark.core.replication.leader.adding_replicas import AddingReplicas
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.core.replication.leader.follower_session import FollowerSession, PartitionSender
from tidemark.core.replication.leader.isr import Committed, PendingExpand, PendingShrink
from tidemark.core.replication.leader.partition_leader import PartitionLeader, _Waiting
from tidemark.core.replication.replica import CommandReply, Replica, WaitingCommand
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.stray_replicas import StrayReplicas
from tidemark.core.replication.unstable_transactions import UncommittedEnds
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    EpochEntry,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)
from tidemark.record.envelope import Batch, Envelope

BROKERS: Final = (BrokerId(101), BrokerId(102), BrokerId(103))
NOW_MS: Final = 1_000_000
CONFIG: Final = ReplicationConfig()
_LONG: Final = NOW_MS - CONFIG.replica_lag_time_max_ms
_NEVER: Final = Offset(1 << 62)

Rename = Mapping[int, int]
AS_THEY_ARE: Final[Rename] = {}
ORDERS: Final = tuple(permutations(range(len(BROKERS))))
RENAMES: Final[tuple[Rename, ...]] = tuple(
    {BROKERS[old]: BROKERS[new] for new, old in enumerate(order)} for order in ORDERS
)
"""Renamings of brokers, one for each order of `ORDERS`; the first one changes no name."""
ONE_AFTER_ANOTHER: Final = tuple(
    tuple(ORDERS.index(tuple(order[place] for place in another)) for another in ORDERS) for order in ORDERS
)
"""For two orders: the order with the same effect as both, one after the other."""

_OBJECTS: Final = (
    Replica,
    ReplicaLog,
    LeaderEpochs,
    ProducerStates,
    PartitionLeader,
    AddingReplicas,
    PartitionFollower,
    FollowerProgress,
    FollowerSession,
    LeaderLink,
    PartitionSender,
    CommandReply,
    StrayReplicas,
)
_VALUES: Final = (
    LeaderAndIsr,
    VersionedState,
    IsrEntry,
    EpochEntry,
    TopicPartition,
    ReplicaIdentity,
    BrokerRegistration,
    Committed,
    PendingExpand,
    PendingShrink,
    WaitingCommand,
    _Waiting,
    msg.EpochQuery,
    msg.FetchPosition,
    msg.Report,
    msg.StopFetch,
    msg.Credit,
    msg.FollowerMessage,
    msg.EpochEnd,
    msg.Chunk,
    msg.Refusal,
    msg.LeaderMessage,
    msg.PartitionCommand,
)
_OF_A_BROKER: Final = frozenset(_OBJECTS) - {
    LeaderEpochs,
    ProducerStates,
    CommandReply,
    Replica,
    FollowerProgress,
    PartitionSender,
}
"""Objects that know the context of their broker."""
_NUMBER: Final[dict[type, int]] = {kind: number for number, kind in enumerate((*_OBJECTS, *_VALUES))}
_KIND: Final[tuple[Any, ...]] = (*_OBJECTS, *_VALUES)
_SHARED: Final = frozenset(_VALUES) - {WaitingCommand, _Waiting, msg.PartitionCommand}
"""Types of values without objects of the core: equal values are written once, and restored once."""
_WRITTEN: Final[dict[tuple[int, ...], dict[Any, Any]]] = {}
_MADE: Final[dict[tuple[int, ...], dict[Any, Any]]] = {}
"""Objects by the new names of the brokers."""
_CONTEXT: Final = ("broker_epoch", "suspected", "registrations", "isr_answers_due", "paused")
_MANAGER: Final = ("replicas", "_fences", "strays")
_COMMANDS: Final = ("_controller_epoch",)
_STREAMS: Final = ("_links", "_followers", "unused_links", "_unplaced", "_sessions")
_RECENT_OR_NOT: Final = frozenset(("caught_up_ms", "end_then_ms", "last_message_ms"))
_ALWAYS_NOW: Final = frozenset(("last_sent_ms", "_retry_at_ms", "_expand_at_ms"))
_NOW_IF_EVER: Final = frozenset(("reading_since_ms", "flush_due_since_ms"))
_NOT_EXPLORED: Final = frozenset(
    (
        *("flushed_offset", "recovered_high_watermark", "confirmed_ms", "echo_ms", "clock_ms", "_resigned_ms"),
        *("_accepted", "began_ms", "uncommitted_since_ms"),
    )
)
"""Only flush.policy=group-commit, unclean elections, the lease, lagging disks, reads from followers use these, and
the logs and metrics."""
_BY_BROKER: Final = frozenset(("_attached", "_holding"))
_SETS: Final = frozenset(("assigned", "assigned_replicas", "isr", "elr", "joining", "leaving"))
_NO_TRANSACTIONS: Final[dict[type, tuple[str, Any]]] = {
    ReplicaLog: ("_uncommitted_ends", UncommittedEnds(Offset(0))),
    ProducerStates: ("_open", OrderedDict[int, Offset]()),
}
"""No transaction is explored: all logs share these empty fields."""
_CONSTANT: Final[dict[str, Any]] = {
    **dict.fromkeys(_ALWAYS_NOW, NOW_MS),
    **dict.fromkeys(_NOT_EXPLORED, 0),
    **{name: None for name, _ in _NO_TRANSACTIONS.values()},
    "_backlog": None,
    "_reasons": "",
    "_stated": ("t", -1, ("t",)),
    "isr_reasons": ("t",),
}
"""Fields that no decision of a core depends on: append rates of producers, and reasons of ISR changes."""
_OF_ITS_OWN_FORM: Final = frozenset(("_high_watermark_news", "_in_flight"))
_SPECIAL: Final = _RECENT_OR_NOT | _NOW_IF_EVER | _BY_BROKER | _SETS | _OF_ITS_OWN_FORM | frozenset(_CONSTANT)
_PLAIN: Final = frozenset((int, str, bool, type(None)))
"""Fields that are not written unchanged; and the types of plain values."""
_TAGS: Final[dict[type, str]] = {tuple: "t", list: "l", deque: "d", set: "s", frozenset: "f"}
_MAKERS: Final[dict[str, Any]] = {tag: kind for kind, tag in _TAGS.items()}


def _field_names(kind: type) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(one.name for one in fields(kind))
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return names


_FIELDS: Final[dict[type, tuple[str, ...]]] = {kind: _field_names(kind) for kind in _VALUES}


class _Form:
    """The form in which objects of a class are written: first the fields that are written unchanged.

    Attributes:
        names: of all fields, in that order: `plain` ones, then the `special` ones that have a normal form.
    """

    def __init__(self, one: Any) -> None:
        kind = type(one)
        names = [name for name in getattr(kind, "__slots__", None) or one.__dict__ if name != "_ctx"]
        self.number = _NUMBER[kind]
        self.plain = tuple(name for name in names if name not in _SPECIAL)
        self.special = tuple(name for name in names if name in _SPECIAL)
        self.names = (*self.plain, *self.special)


_FORMS: Final[dict[type, _Form]] = {}


def make_batch(label: int, base_offset: int = 0, leader_epoch: int = -1) -> Batch:
    """A batch of one record; `label` stands for its payload. Not stamped, unless an argument states a stamp."""
    envelope = Envelope(base_offset, leader_epoch, 0, 64, 0, 1, 0, 0, 1, 0, -1, 0, -1, 0, 0)
    return Batch(envelope, b"%d" % label)


class _Writer:
    """Writes one graph of objects, with other names for the brokers."""

    def __init__(self, rename: Rename = AS_THEY_ARE) -> None:
        self._named = rename.get
        self._met: dict[int, int] = {}
        self._written = _WRITTEN.setdefault(_names(rename), {})

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return self._named(value, value)
        number = _NUMBER.get(kind)
        if number is not None:
            return self._write_object(value, kind) if number < len(_OBJECTS) else self._write_value(value, kind)
        if kind is dict:
            items = list(value.items())
            if all(type(key) is int for key in value):
                items.sort(key=lambda item: self._named(item[0], item[0]))
            return ("m", *[(self.write(key), self.write(one)) for key, one in items])
        if kind is OrderedDict:
            return ("q", *[(self.write(key), self.write(one)) for key, one in value.items()])
        tag = _TAGS.get(kind)
        if tag is not None:
            written = self._write_all(value)
            return (tag, *(sorted(written) if tag in "sf" else written))
        if kind is Batch:
            return ("b", int(value.data), value.envelope.base_offset, value.envelope.leader_epoch)
        if kind is TidemarkError:
            return ("x", value.code.name)
        assert isinstance(value, Enum), f"no encoding for {value!r}"
        return ("P", value.name) if kind is Phase else ("E", value.name)

    def _write_all(self, values: Iterable[Any]) -> list[Any]:
        named = self._named
        return [named(one, one) if type(one) in _PLAIN else self.write(one) for one in values]

    def _write_object(self, value: Any, kind: type) -> Any:
        known = self._met.get(id(value))
        if known is not None:
            return ("#", known)
        self._met[id(value)] = len(self._met)
        form = _FORMS.get(kind)
        if form is None:
            form = _FORMS[kind] = _Form(value)
        if kind is FollowerProgress and value.caught_up_ms > _LONG:
            value.end_then, value.end_then_ms = _NEVER, LONG_AGO_MS
        written = self._write_all([getattr(value, name) for name in form.plain])
        written += [self._write_field(name, getattr(value, name)) for name in form.special]
        return ("o", form.number, *written)

    def _write_value(self, value: Any, kind: type) -> Any:
        if kind not in _SHARED:
            return self._write_fields(value, kind)
        # those of one story differ in nothing else, and cannot be keys
        key = (kind, (value.broker_id, value.broker_epoch) if kind is BrokerRegistration else value)
        known = self._written.get(key)
        if known is None:
            known = self._written[key] = self._write_fields(value, kind)
        return known

    def _write_fields(self, value: Any, kind: type) -> Any:
        if kind is msg.Refusal:
            value = value._replace(message="")
        written = [self._write_field(name, getattr(value, name)) for name in _FIELDS[kind]]
        return ("v", _NUMBER[kind], *written)

    def _write_field(self, name: str, value: Any) -> Any:
        if name not in _SPECIAL:
            return self.write(value)
        if name in _CONSTANT:
            return _CONSTANT[name]
        if name in _RECENT_OR_NOT:
            return NOW_MS if value > _LONG else LONG_AGO_MS
        if name in _NOW_IF_EVER:
            return None if value is None else NOW_MS
        if name in _BY_BROKER:
            value = type(value)(sorted(value, key=lambda one: self._named(one.broker_id, one.broker_id)))
        elif name == "_high_watermark_news":
            value = {one: None for one in value if one.sent_high_watermark != one.log.high_watermark}
        elif name == "_in_flight":
            value = deque((end, NOW_MS) for end, _ in value)
        elif type(value) is tuple:
            return ("t", *sorted(self._write_all(value)))
        return self.write(value)


def _names(rename: Rename) -> tuple[int, ...]:
    return tuple(rename.get(one, one) for one in BROKERS)


class _Reader:
    """Restores the objects, with other names for the brokers."""

    def __init__(self, ctx: BrokerContext | None, rename: Rename) -> None:
        self._ctx = ctx
        self._rename = rename
        self._made: list[Any] = []
        self._shared = _MADE.setdefault(_names(rename), {})

    def read(self, value: Any) -> Any:
        if type(value) is not tuple:
            return self._rename.get(value, value)
        tag = value[0]
        if tag == "o":
            return self._object(value)
        if tag == "v":
            return self._value(value)
        if tag in _MAKERS:
            return _MAKERS[tag](self._all(value[1:]))
        if tag == "#":
            return self._made[value[1]]
        if tag in "mq":
            made = {self.read(key): self.read(one) for key, one in value[1:]}
            return made if tag == "m" else OrderedDict(made)
        if tag == "b":
            return make_batch(*value[1:])
        code = (Phase if tag == "P" else ErrorCode)[value[1]]
        return TidemarkError(ErrorCode[value[1]], "") if tag == "x" else code

    def _all(self, values: tuple[Any, ...]) -> list[Any]:
        named = self._rename.get
        return [self.read(one) if type(one) is tuple else named(one, one) for one in values]

    def _value(self, value: Any) -> Any:
        kind = _KIND[value[1]]
        if kind not in _SHARED:
            return kind(*self._all(value[2:]))
        known = self._shared.get(value)
        if known is None:
            known = self._shared[value] = kind(*self._all(value[2:]))
        return known

    def _object(self, value: Any) -> Any:
        kind = _KIND[value[1]]
        made: Any = kind.__new__(kind)
        self._made.append(made)
        named = self._rename.get
        for name, one in zip(_FORMS[kind].names, value[2:], strict=True):
            setattr(made, name, self.read(one) if type(one) is tuple else named(one, one))
        if kind in _NO_TRANSACTIONS:
            setattr(made, *_NO_TRANSACTIONS[kind])
        if kind in _OF_A_BROKER:
            made._ctx = self._ctx
        return made


def freeze_value(value: object) -> bytes:
    """A message or a node as bytes: equal ones give equal bytes."""
    return marshal.dumps(_Writer().write(value), 2)


def thaw_value(frozen: bytes, rename: Rename = AS_THEY_ARE) -> Any:
    """The message or node of these bytes."""
    return _Reader(None, rename).read(marshal.loads(frozen))


def _owners(core: BrokerCore) -> tuple[tuple[Any, tuple[str, ...]], ...]:
    """The parts of a core with the names of the fields that its future depends on."""
    return (
        (core._ctx, _CONTEXT),
        (core._manager, _MANAGER),
        (core._commands, _COMMANDS),
        (core._streams, _STREAMS),
    )


def freeze(core: BrokerCore, rename: Rename = AS_THEY_ARE) -> bytes:
    """All fields of a broker core that its future depends on; with `rename`, with other names of the brokers."""
    writer = _Writer(rename)
    ctx = core._ctx
    assert not ctx.links_to_flush, "a message was not sent"
    assert not ctx.sessions_to_flush, "a message was not sent"
    parts = [writer.write(ctx.broker_id)]
    for owner, names in _owners(core):
        parts += [writer.write(getattr(owner, name)) for name in names]
    return marshal.dumps(tuple(parts), 2)


def thaw(frozen: bytes, rename: Rename = AS_THEY_ARE) -> BrokerCore:
    """The core of these bytes; with `rename`, with other names of the brokers."""
    parts = iter(marshal.loads(frozen))
    broker_id = next(parts)
    core = BrokerCore(BrokerId(rename.get(broker_id, broker_id)), CONFIG)
    ctx, streams = core._ctx, core._streams
    reader = _Reader(ctx, rename)
    for owner, names in _owners(core):
        for name in names:
            value = reader.read(next(parts))
            if name == "replicas":
                core._replicas.update(value)  # all parts of the core share this dictionary
            else:
                setattr(owner, name, value)
    ctx.now_ms = NOW_MS
    ctx.watched = {name: one.role for name, one in core._replicas.items() if isinstance(one.role, PartitionLeader)}
    streams._ticked_ms = NOW_MS
    streams._lag_checked_ms = NOW_MS - CONFIG.replica_lag_time_max_ms
    return core


def aged(core: BrokerCore, follower: BrokerId) -> None:
    """Let `replica.lag.time.max.ms` pass without a message of one follower, for the leader that this core is."""
    for replica in core._replicas.values():
        role = replica.role
        if isinstance(role, PartitionLeader) and follower in role.followers:
            progress = role.followers[follower]
            progress.caught_up_ms = progress.end_then_ms = LONG_AGO_MS
    session = core._streams._sessions.get(follower)
    if session is not None:
        session.last_message_ms = LONG_AGO_MS

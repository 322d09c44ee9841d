"""A broker core as a plain value, and back: equal cores give equal values, whatever their history.

A value is nested tuples of ints and strings. Objects of the core are numbered in the order in which they are met, so
a cycle is a number. Three things are written in one normal form, since nothing in the protocol depends on them:

- time: every clock reads either *just now* or *long ago* (see `aged`), so a state does not hold the hour;
  What a leader notes of a follower's past is dropped while that follower is caught up, and every led partition is
  looked at by every tick: which ones need it is a saving of work only;
- order: sets, dictionaries keyed by broker, ISR and ELR are sorted (the explorer's controller tries every order);
- names: broker ids are the only ints of `BROKERS`, so `thaw` can give every broker another name.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from tidemark.core import messages as msg
from tidemark.core.added_replicas import AddedReplicas
from tidemark.core.broker import BrokerCore
from tidemark.core.broker_context import BrokerContext
from tidemark.core.config import ReplicationConfig
from tidemark.core.inventory import Inventory
from tidemark.core.isr import Committed, PendingExpand, PendingShrink
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.partition_follower import PartitionFollower, Phase
from tidemark.core.partition_leader import PartitionLeader, _Waiting
from tidemark.core.producer_state import ProducerStates
from tidemark.core.remote_replica import RemoteReplica
from tidemark.core.replica import CommandReply, Replica, WaitingCommand
from tidemark.core.replica_log import ReplicaLog
from tidemark.core.replication_session import LONG_AGO_MS, FollowerSession, LeaderLink, Sending
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

_OBJECTS: Final = (
    Replica,
    ReplicaLog,
    LeaderEpochs,
    ProducerStates,
    PartitionLeader,
    AddedReplicas,
    PartitionFollower,
    RemoteReplica,
    FollowerSession,
    LeaderLink,
    Sending,
    CommandReply,
    Inventory,
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
_NUMBER: Final[dict[type, int]] = {kind: number for number, kind in enumerate((*_OBJECTS, *_VALUES))}
_KIND: Final[tuple[Any, ...]] = (*_OBJECTS, *_VALUES)
_SHARED: Final = frozenset(_VALUES) - {WaitingCommand, _Waiting, msg.PartitionCommand}
"""Values that hold no object of the core: equal ones are written, and made again, once."""
_WRITTEN: Final[dict[tuple[type, Any], Any]] = {}
_MADE: Final[dict[tuple[int, ...], dict[Any, Any]]] = {}
"""By the new names of the brokers."""
_CONTEXT: Final = ("broker_epoch", "suspected", "registrations", "isr_answers_due", "paused")
_CORE: Final = ("_replicas", "_controller_epoch", "_fences", "_inventory")
_STREAMS: Final = ("_links", "_unused", "_unplaced", "_sessions")
_RECENT_OR_NOT: Final = frozenset(("caught_up_ms", "end_then_ms", "last_message_ms"))
_ALWAYS_NOW: Final = frozenset(("last_sent_ms", "_retry_at_ms"))
_NOW_IF_EVER: Final = frozenset(("reading_since_ms", "flush_due_since_ms"))
_NOT_EXPLORED: Final = frozenset(
    (
        *("flushed_offset", "recovered_high_watermark", "confirmed_ms", "echo_ms", "clock_ms", "_gave_up_ms"),
        *("_accepted", "_reasons", "began_ms", "uncommitted_since_ms"),
    )
)
"""Only flush.policy=group-commit, unclean elections, the lease, lagging disks and reads from followers go by these, and
what people are told."""
_BY_BROKER: Final = frozenset(("_attached", "_holding"))
_SPECIAL: Final = _RECENT_OR_NOT | _ALWAYS_NOW | _NOW_IF_EVER | _NOT_EXPLORED | {"_inbound"}
_PLAIN: Final = frozenset((int, str, bool, type(None)))
"""Fields that may hold a plain value and are not written as it is; and what plain values are."""


def _field_names(kind: type) -> tuple[str, ...]:
    if kind in _OBJECTS:
        slots = getattr(kind, "__slots__", ())
        return tuple(name for name in slots if name != "_ctx")
    if is_dataclass(kind):
        return tuple(one.name for one in fields(kind))
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return names


_FIELDS: Final[dict[type, tuple[str, ...]]] = {kind: _field_names(kind) for kind in _KIND}
"""Of classes without slots, those of the first object that is written."""


def make_batch(label: int, base_offset: int = 0, leader_epoch: int = -1) -> Batch:
    """A batch of one record; `label` stands for its payload. Unstamped unless said otherwise."""
    envelope = Envelope(base_offset, leader_epoch, 0, 64, 0, 1, 0, 0, 1, 0, -1, 0, -1, 0, 0)
    return Batch(envelope, b"%d" % label)


class _Writer:
    """Writes one graph of objects."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}

    def write(self, value: Any) -> Any:
        if value is None or type(value) in (int, str, bool):
            return value
        kind = type(value)
        if kind is tuple or kind is list or kind is deque:
            return (kind.__name__[0], *map(self.write, value))
        if kind is dict:
            items = list(value.items())
            if all(type(key) is int for key in value):
                items.sort()
            return ("m", *[(self.write(key), self.write(one)) for key, one in items])
        if kind is set or kind is frozenset:
            return (kind.__name__[0], *map(self.write, sorted(value)))
        if kind is Batch:
            return ("b", int(value.data), value.envelope.base_offset, value.envelope.leader_epoch)
        if isinstance(value, Enum):
            return ("P", value.name) if kind is Phase else ("E", value.name)
        if kind is TidemarkError:
            return ("x", value.code.name)
        if kind not in _SHARED:
            return self._write_fields(value, kind)
        # those of one story differ in nothing else, and cannot be keys
        key = (kind, (value.broker_id, value.broker_epoch) if kind is BrokerRegistration else value)
        known = _WRITTEN.get(key)
        if known is None:
            known = _WRITTEN[key] = self._write_fields(value, kind)
        return known

    def _write_fields(self, value: Any, kind: type) -> Any:
        number = _NUMBER[kind]
        if number < len(_OBJECTS):
            known = self._met.get(id(value))
            if known is not None:
                return ("#", known)
            self._met[id(value)] = len(self._met)
            if not _FIELDS[kind]:
                _FIELDS[kind] = tuple(name for name in value.__dict__ if name != "_ctx")
            names = _FIELDS[kind]
            if kind is RemoteReplica and value.caught_up_ms > _LONG:
                value.end_then, value.end_then_ms = _NEVER, LONG_AGO_MS
            return ("o", number, *self._write_each(names, value))
        if kind is msg.Refusal:
            value = value._replace(message="")
        return ("v", number, *self._write_each(_FIELDS[kind], value))

    def _write_each(self, names: tuple[str, ...], value: Any) -> list[Any]:
        written = [getattr(value, name) for name in names]
        for place, one in enumerate(written):
            if type(one) not in _PLAIN or names[place] in _SPECIAL:
                written[place] = self._write_field(names[place], one)
        return written

    def _write_field(self, name: str, value: Any) -> Any:
        if name in _RECENT_OR_NOT:
            return NOW_MS if value > _LONG else LONG_AGO_MS
        if name in _ALWAYS_NOW:
            return NOW_MS
        if name == "_inbound":  # what producers append in a second decides nothing
            return None
        if name in _BY_BROKER:
            value = type(value)(sorted(value, key=_broker_of))
        elif name == "_high_watermark_news":
            value = {one: None for one in value if one.sent_high_watermark != one.log.high_watermark}
        elif name in _NOT_EXPLORED:
            return 0
        elif name in _NOW_IF_EVER:
            return None if value is None else NOW_MS
        elif name == "_under_way":
            value = deque((end, NOW_MS) for end, _ in value)
        elif name in ("assigned", "assigned_replicas", "isr", "elr", "joining", "leaving") and type(value) is tuple:
            value = tuple(sorted(value))
        return self.write(value)


def _broker_of(remote: RemoteReplica) -> int:
    return remote.broker_id


class _Reader:
    """Makes the objects again, with other names for the brokers."""

    def __init__(self, ctx: BrokerContext | None, rename: Rename) -> None:
        self._ctx = ctx
        self._rename = rename
        self._made: list[Any] = []
        self._shared = _MADE.setdefault(tuple(rename.get(one, one) for one in BROKERS), {})

    def read(self, value: Any) -> Any:
        if type(value) is not tuple:
            return self._rename.get(value, value)
        tag = value[0]
        if tag == "o":
            return self._object(value)
        if tag == "v":
            kind = _KIND[value[1]]
            if kind not in _SHARED:
                return kind(*map(self.read, value[2:]))
            known = self._shared.get(value)
            if known is None:
                known = self._shared[value] = kind(*map(self.read, value[2:]))
            return known
        if tag == "#":
            return self._made[value[1]]
        if tag == "m":
            return {self.read(key): self.read(one) for key, one in value[1:]}
        if tag == "b":
            return make_batch(*value[1:])
        if tag in "PEx":
            code = (Phase if tag == "P" else ErrorCode)[value[1]]
            return TidemarkError(ErrorCode[value[1]], "") if tag == "x" else code
        kinds: dict[str, Any] = {"t": tuple, "l": list, "d": deque, "s": set, "f": frozenset}
        return kinds[tag](map(self.read, value[1:]))

    def _object(self, value: Any) -> Any:
        kind = _KIND[value[1]]
        made: Any = kind.__new__(kind)
        self._made.append(made)
        for name, one in zip(_FIELDS[kind], value[2:], strict=True):
            setattr(made, name, self.read(one) if type(one) is tuple else self._rename.get(one, one))
        if kind not in (LeaderEpochs, ProducerStates, CommandReply, Replica, RemoteReplica, Sending):
            made._ctx = self._ctx
        return made


def freeze_value(value: object) -> bytes:
    """A message or a node as bytes: the same for equal ones."""
    return marshal.dumps(_Writer().write(value), 2)


def thaw_value(frozen: bytes, rename: Rename = AS_THEY_ARE) -> Any:
    """The message or node again."""
    return _Reader(None, rename).read(marshal.loads(frozen))


def freeze(core: BrokerCore) -> bytes:
    """All of a broker core that its future depends on."""
    writer = _Writer()
    ctx, streams = core._ctx, core._streams
    assert not ctx.talking_links, "what there was to say was said"
    assert not ctx.talking_sessions, "what there was to say was said"
    parts = [ctx.broker_id]
    for owner, names in ((ctx, _CONTEXT), (core, _CORE), (streams, _STREAMS)):
        parts += [writer.write(getattr(owner, name)) for name in names]
    return marshal.dumps(tuple(parts), 2)


def thaw(frozen: bytes, rename: Rename = AS_THEY_ARE) -> BrokerCore:
    """The core again; with `rename`, as it would be had the brokers changed their names from the start."""
    parts = iter(marshal.loads(frozen))
    broker_id = next(parts)
    core = BrokerCore(BrokerId(rename.get(broker_id, broker_id)), CONFIG)
    ctx, streams = core._ctx, core._streams
    reader = _Reader(ctx, rename)
    for owner, names in ((ctx, _CONTEXT), (core, _CORE), (streams, _STREAMS)):
        for name in names:
            value = reader.read(next(parts))
            if name == "_replicas":
                core._replicas.update(value)  # the streams look at the same dictionary
            else:
                setattr(owner, name, value)
    ctx.now_ms = NOW_MS
    ctx.watched = {name: one.role for name, one in core._replicas.items() if isinstance(one.role, PartitionLeader)}
    streams._ticked_ms = NOW_MS
    streams._lag_checked_ms = NOW_MS - CONFIG.replica_lag_time_max_ms
    return core


def aged(core: BrokerCore, follower: BrokerId) -> None:
    """Let `replica.lag.time.max.ms` pass without a sign of one follower, for the leader that this core is."""
    for replica in core._replicas.values():
        role = replica.role
        if isinstance(role, PartitionLeader) and follower in role.remotes:
            remote = role.remotes[follower]
            remote.caught_up_ms = remote.end_then_ms = LONG_AGO_MS
    session = core._streams._sessions.get(follower)
    if session is not None:
        session.last_message_ms = LONG_AGO_MS

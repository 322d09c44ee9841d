# SPDX-License-Identifier: Apache-2.0
"""The clients of a round's typed topic: senders, a reader, and pairs of operators that change its schema."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from tidemark.client import AdminClient, Consumer, read_table
from tidemark.core.schemas.model import ColumnType, ListOf, StructOf, TopicSchema
from tidemark.core.schemas.type_names import type_name
from tidemark.model import ErrorCode, TidemarkError

from tests.chaos.arena.arena import Arena
from tests.chaos.checks.history import History, Outcome, Polled
from tests.chaos.checks.typed_history import AT_THE_END, Change, ColumnSpec, Fate, ReadRow, StoredVersion, TypedHistory
from tests.chaos.clients import DRAIN_S, Sender, once_answered, request_ms
from tests.chaos.loads import PLAIN, Load
from tests.chaos.typed import evolution
from tests.chaos.typed.senders import RowSender, TableSender

LOAD: Final = Load("typed", 3, ("s", "t"), ("q",), burst=2, configs={"segment.bytes": "65536"})
_PAUSE_S: Final = (0.3, 2.5)
_CALL_S: Final = 10.0
_IDENTITY: Final = ("sender", "number")
_ARROW_TYPES: Final = {"double": "float64"}
_FATES: Final = {ErrorCode.INCOMPATIBLE_SCHEMA: Fate.REFUSED, ErrorCode.SCHEMA_CONFLICT: Fate.OUTRUN}


class TypedFigures(NamedTuple):
    """Versions at the end; changes with a conflict; refused changes; rows that did not fit."""

    versions: int
    outrun: int
    refused: int
    misfits: int


class TypedTroop:
    """Clients of the typed topic; one thread calls each method."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.history = History(readers=LOAD.readers)
        self.typed = TypedHistory(changes=[evolution.FIRST])
        self.told: list[str] = []
        self._arena = arena
        self._chance = random.Random(seed)
        self._columns = evolution.FIRST.columns

    def create(self, admin: AdminClient) -> None:
        """Create the topic with the first version."""
        schema = evolution.document_of(evolution.FIRST)
        configs = {**PLAIN.topic_configs, **LOAD.configs}
        admin.create_topic(LOAD.topic, partitions=LOAD.partitions, replication_factor=3, configs=configs, schema=schema)

    def senders(self, abandoned: threading.Event) -> list[Sender]:
        """The senders, not started."""
        made: list[Sender] = []
        for kind, name in zip((RowSender, TableSender), LOAD.senders, strict=True):
            sender = kind(name, self._arena.bootstrap, LOAD, None, self._arena.slowness, abandoned, {})
            sender.follow(self.typed, lambda: self._columns, self.history.sent)
            made.append(sender)
        return made

    # -- changes -------------------------------------------------------------------------------------------------------

    def evolve_until(self, ended: threading.Event) -> None:
        """Repeatedly make two concurrent changes, and one more that the policy does not allow."""
        with self._admin() as admin, self._admin() as rival, self._admin() as careless:
            number = 0
            while not ended.wait(self._chance.uniform(*_PAUSE_S)):
                try:
                    newest = self._newest(admin)
                except TidemarkError:
                    continue
                number += 1
                make = (evolution.allowed_change, evolution.allowed_change, evolution.incompatible_change)
                before = self._columns
                changes = [
                    one(self._chance, f"{number}{letter}", newest, before)
                    for one, letter in zip(make, "abx", strict=True)
                ]
                self.typed.changes += changes
                asking = [
                    threading.Thread(target=self._ask, args=(client, change, before), name="change")
                    for client, change in zip((admin, rival, careless), changes, strict=True)
                ]
                for thread in asking:
                    thread.start()
                for thread in asking:
                    thread.join()
                self.told.append(", ".join(f"{one.tag} {one.fate}" for one in changes))

    def _admin(self) -> AdminClient:
        return AdminClient(admin=self._arena.cluster.admin_address, timeout_s=_CALL_S * self._arena.slowness)

    def _newest(self, admin: AdminClient) -> int:
        """The newest version; senders use its columns from now on."""
        stored = stored_versions(admin)[-1]
        change = next((one for one in self.typed.changes if one.tag == stored.tag), None)
        if change is None:
            raise TidemarkError(ErrorCode.INTERNAL, f"{stored} has the tag of no change")
        self._columns = change.columns
        return stored.version

    def _ask(self, admin: AdminClient, change: Change, before: tuple[ColumnSpec, ...]) -> None:
        """Repeat a request that got no answer.

        Because of the request id, the second attempt gets the answer to the first.
        """
        document = evolution.document_of(change, before)
        for _ in range(2):
            try:
                made = admin.alter_topic_schema(
                    LOAD.topic, document, expected_version=change.follows, request_id=f"change {change.tag}"
                )
            except TidemarkError as error:
                if error.retriable:
                    continue
                change.fate = _FATES.get(error.code, Fate.UNKNOWN)
                if change.fate is Fate.UNKNOWN:
                    self.history.add_failure(f"{change} failed: {error}")
                return
            change.fate, change.version = Fate.MADE, made.schema.version
            self._columns = change.columns
            return

    # -- reads ---------------------------------------------------------------------------------------------------------

    def read_until(self, at_end: Callable[[dict[int, int]], bool]) -> None:
        """Read everything from the beginning, until `at_end` accepts the positions."""
        (name,) = LOAD.readers
        positions: dict[int, int] = {}
        request_timeout_ms = request_ms(self._arena.slowness)
        begin = partial(Consumer, self._arena.bootstrap, request_timeout_ms=request_timeout_ms)
        try:
            with once_answered(begin, DRAIN_S * self._arena.slowness) as consumer:
                consumer.assign(LOAD.topic)
                while not at_end(positions):
                    try:
                        batch = consumer.poll(0.2)
                    except TidemarkError as error:
                        if error.code is ErrorCode.REQUEST_TIMED_OUT:
                            continue  # the thread of all clients in this process is late
                        raise
                    if batch is not None:
                        rows = batch.rows.to_pylist()
                        self._note(name, batch.partition, rows)
                        positions[batch.partition] = rows[-1]["_offset"] + 1
        except TidemarkError as error:
            self.history.add_failure(f"{name} gave up at {positions}: {error}")

    def _note(self, name: str, partition: int, rows: list[dict[str, Any]]) -> None:
        read = [_read_row(name, partition, row) for row in rows]
        self.typed.read += read
        self.history.add_polled([Polled(name, partition, one.offset, one.value) for one in read])

    def read_back(self, abandoned: threading.Event, patience_s: float) -> None:
        """The versions and the rows at the end, in the newest version; nothing in an abandoned round."""
        if abandoned.is_set():
            return
        with self._admin() as admin:
            self.typed.versions = stored_versions(admin)
        names = [name for name, _ in self.typed.versions[-1].columns]
        self.history.final = {partition: [] for partition in range(LOAD.partitions)}
        with read_table(self._arena.bootstrap, LOAD.topic, deadline_s=patience_s) as plain:
            self.typed.last_columns = tuple((field.name, _arrow_shape(field.type)) for field in plain.schema)
        wanted = [*names, "_partition", "_offset"]
        with read_table(self._arena.bootstrap, LOAD.topic, columns=wanted, deadline_s=patience_s) as reader:
            for row in reader.read_all().to_pylist():
                read = _read_row(AT_THE_END, row["_partition"], row)
                self.typed.read.append(read)
                self.history.final[read.partition].append((read.offset, read.value))

    def figures(self) -> TypedFigures:
        fates = [one.fate for one in self.typed.changes]
        misfits = sum(one.outcome is Outcome.FAILED for one in self.history.sent)
        return TypedFigures(len(self.typed.versions), fates.count(Fate.OUTRUN), fates.count(Fate.REFUSED), misfits)


def stored_versions(admin: AdminClient) -> list[StoredVersion]:
    """The versions of the topic that the admin service describes, in order."""
    return [_stored(one.schema) for one in admin.describe_topic_schemas(LOAD.topic).versions]


def _stored(schema: TopicSchema) -> StoredVersion:
    tag = next(column.doc for column in schema.columns if column.name == "number")
    return StoredVersion(schema.version, tag, tuple((column.name, _shape(column.type)) for column in schema.columns))


def _shape(kind: ColumnType) -> str:
    match kind:
        case StructOf(columns):
            return f"struct<{', '.join(f'{it.name}: {_shape(it.type)}' for it in columns)}>"
        case ListOf(element):
            return f"list<{_shape(element.type)}>"
        case _:
            return type_name(kind)


def _arrow_shape(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{it.name}: {_arrow_shape(it.type)}' for it in kind)}>"
    if pa.types.is_list(kind):
        return f"list<{_arrow_shape(kind.value_type)}>"
    return _ARROW_TYPES.get(str(kind), str(kind))


def _read_row(reader: str, partition: int, row: dict[str, Any]) -> ReadRow:
    columns = {name: value for name, value in row.items() if not name.startswith("_")}
    return ReadRow(reader, partition, row["_offset"], ":".join(str(row[name]) for name in _IDENTITY), columns)

# SPDX-License-Identifier: Apache-2.0
"""The invariants of transactions, under the names of docs/guarantees.md. Each class records the facts that it checks.

The clients' side is independent of the code under test: a client notes which rows belong to which transaction, and
whether it requested a commit. The coordinator's side is read from the committed records of `__transaction_state`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.state import (
    Change,
    EndReason,
    PageKey,
    ProducerIdentity,
    TransactionMetadata,
    TransactionPartition,
    Writer,
    WritersPage,
)

from tests.simulation.coordination.lives import BrokenError
from tests.simulation.transactions.partition_log import Entry, PartitionLog, Read, Row, Source, Tag

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld


class Invariant:
    """One guarantee; the world calls these methods, and each raises BrokenError if the guarantee does not hold."""

    name = ""

    def require(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise BrokenError(self.name, sentence)

    def starts(self, client: str, generation: int) -> None:
        """The init of a client is answered."""

    def sends(self, key: TransactionPartition, row: Row) -> None:
        """A client sends a row, for the first time or again."""

    def ends(self, tag: Tag, *, commit: bool) -> None:
        """A client sends its first request for this end of a transaction."""

    def answered(self, tag: Tag, *, commit: bool) -> None:
        """The coordinator has answered the end of a transaction."""

    def batch_done(self, name: str, batch: int) -> None:
        """The coordinator has answered that the batch of a sink is committed, by this call or an earlier one."""

    def transforms(self, tag: Tag, starts: dict[int, int], ends: dict[int, int]) -> None:
        """A transaction writes a row for each input record in [start, end), and commits these ends as offsets."""

    def fetches(self, offsets: dict[int, int]) -> None:
        """A group coordinator answers with these committed offsets, by input partition."""

    def wrote(self, changes: list[Change]) -> None:
        """Records of the coordinator are committed."""

    def committed(self, log: PartitionLog, entry: Entry) -> None:
        """An entry of a partition is committed."""

    def reads(self, reader: str, log: PartitionLog, position: int, read: Read, rows: list[tuple[int, Row]]) -> None:
        """A reader gets these rows, each with its offset."""

    def at_the_end(self, world: TransactionWorld) -> None:
        """The check at the end of peace."""


class Atomic(Invariant):
    """Readers see all rows of a transaction or none, each once; all if its commit was answered. A decision is final."""

    name = "ATOMIC"

    def __init__(self) -> None:
        self._sent: defaultdict[Tag, set[tuple[TransactionPartition, Row]]] = defaultdict(set)
        self._answered: dict[Tag, bool] = {}
        self._done: set[tuple[str, int]] = set()
        self._seen: defaultdict[tuple[TransactionPartition, Row], set[int]] = defaultdict(set)
        self._decisions = Decisions()

    def sends(self, key: TransactionPartition, row: Row) -> None:
        self._sent[row.tag].add((key, row))

    def answered(self, tag: Tag, *, commit: bool) -> None:
        self._answered[tag] = commit

    def batch_done(self, name: str, batch: int) -> None:
        self._done.add((name, batch))

    def wrote(self, changes: list[Change]) -> None:
        for decision, commit, before in self._decisions.of(changes):
            self.require(before in (None, commit), f"{decision} was decided as commit={before}, now commit={commit}")

    def reads(self, reader: str, log: PartitionLog, position: int, read: Read, rows: list[tuple[int, Row]]) -> None:
        for offset, row in rows:
            seen = self._seen[log.key, row]
            seen.add(offset)
            self.require(len(seen) == 1, f"{reader} reads {row} of partition {log.key.partition} at offsets {seen}")

    def at_the_end(self, world: TransactionWorld) -> None:
        living = {log.key for log in world.partitions}
        for tag, sent in self._sent.items():
            rows = {one for one in sent if one[0] in living}
            seen = {one for one in rows if one in self._seen}
            self.require(not seen or seen == rows, f"of {tag} only {len(seen)} of {len(rows)} rows are visible")
            if tag in self._answered:
                expected = rows if self._answered[tag] else set()
                self.require(
                    seen == expected, f"{tag} was answered commit={self._answered[tag]}, {len(seen)} rows show"
                )
        self._check_batches(living)

    def _check_batches(self, living: set[TransactionPartition]) -> None:
        """Each task of a sink's batch shows in one attempt, and all attempts of one call of the driver or none."""
        shown: defaultdict[tuple[str, int], set[Tag]] = defaultdict(set)
        hidden: defaultdict[tuple[str, int], set[Tag]] = defaultdict(set)
        for tag, sent in self._sent.items():
            if tag.member:
                place = shown if any(one in self._seen for one in sent) else hidden
                if place is shown or not any(key in living for key, _ in sent):
                    place[tag.name, tag.serial].add(tag)
        for batch, tags in shown.items():
            tasks = [tag.member.split(",")[0] for tag in tags]
            self.require(len(set(tasks)) == len(tasks), f"batch {batch} shows twice: {sorted(tags)}")
            self.require(len({tag.client for tag in tags}) == 1, f"batch {batch} shows in part: {sorted(tags)}")
        for batch in self._done - shown.keys() - hidden.keys():
            self.require(False, f"batch {batch} was answered and does not show")


class ReadCommitted(Invariant):
    """A reader gets no row of an open or aborted transaction, and does not skip an open transaction."""

    name = "READ-COMMITTED"

    def __init__(self) -> None:
        self._asked: set[Tag] = set()
        self._decisions = Decisions()
        self._open: defaultdict[TransactionPartition, dict[int, int]] = defaultdict(dict)
        self._read: dict[tuple[TransactionPartition, int], Row | None] = {}

    def ends(self, tag: Tag, *, commit: bool) -> None:
        if commit:
            self._asked.add(tag)

    def wrote(self, changes: list[Change]) -> None:
        for _ in self._decisions.of(changes):
            pass

    def committed(self, log: PartitionLog, entry: Entry) -> None:
        opened = self._open[log.key]
        if entry.envelope.is_control:
            opened.pop(entry.producer.producer_id, None)
        else:
            opened.setdefault(entry.producer.producer_id, entry.envelope.base_offset)

    def reads(self, reader: str, log: PartitionLog, position: int, read: Read, rows: list[tuple[int, Row]]) -> None:
        where = f"{reader} in partition {log.key.partition}"
        passed = position + len(read.entries)
        unstable = min(self._open[log.key].values(), default=log.high_watermark)
        self.require(passed <= log.high_watermark, f"{where} passes the high watermark {log.high_watermark}")
        self.require(not read.entries or passed <= unstable, f"{where} passes {unstable}, whose transaction is open")
        given = dict(rows)
        for offset in range(position, passed):
            before = self._read.setdefault((log.key, offset), given.get(offset))
            self.require(before == given.get(offset), f"{where} reads {given.get(offset)} at {offset}, before {before}")
        for offset, row in rows:
            self.require(row.tag in self._asked, f"{where} reads {row}, whose client has not asked for a commit")
            producer = log.entries[offset].producer
            decided = self._decisions.is_committed(producer)
            self.require(decided, f"{where} reads {row}, no commit of {producer} is decided")


class OffsetsWithData(Invariant):
    """The committed offset of an input partition matches the visible rows made from it: none twice, none missing."""

    name = "OFFSETS-WITH-DATA"

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], set[Tag]] = {}
        self._asked: set[Tag] = set()
        self._producers: defaultdict[Tag, set[ProducerIdentity]] = defaultdict(set)
        self._decisions = Decisions()
        self._fetched: defaultdict[int, int] = defaultdict(int)
        self._shown: dict[Source, tuple[TransactionPartition, int]] = {}

    def transforms(self, tag: Tag, starts: dict[int, int], ends: dict[int, int]) -> None:
        for one in ends.items():
            self._ends.setdefault(one, set()).add(tag)

    def ends(self, tag: Tag, *, commit: bool) -> None:
        if commit:
            self._asked.add(tag)

    def wrote(self, changes: list[Change]) -> None:
        for _ in self._decisions.of(changes):
            pass

    def committed(self, log: PartitionLog, entry: Entry) -> None:
        if entry.row is not None:
            self._producers[entry.row.tag].add(entry.producer)

    def fetches(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            told = f"the offset of input {partition} is {offset}"
            self.require(offset >= self._fetched[partition], f"{told}, before it was {self._fetched[partition]}")
            self._fetched[partition] = offset
            if offset:
                owners = self._ends.get((partition, offset), set()) & self._asked
                decided = any(
                    map(self._decisions.is_committed, (one for tag in owners for one in self._producers[tag]))
                )
                self.require(decided, f"{told}, and no commit of a transaction that ends there is decided: {owners}")

    def reads(self, reader: str, log: PartitionLog, position: int, read: Read, rows: list[tuple[int, Row]]) -> None:
        for offset, row in rows:
            if row.source is not None:
                where = self._shown.setdefault(row.source, (log.key, offset))
                self.require(where == (log.key, offset), f"{row} is at {offset} of {log.key}, and at {where}")

    def at_the_end(self, world: TransactionWorld) -> None:
        if world.offsets is None:
            return
        offsets = world.committed_offsets()
        self.fetches(offsets)
        for partition, end in offsets.items():
            shown = sorted(offset for one, offset in self._shown if one == partition)
            told = f"the offset of input {partition} is {end}, visible rows come from {shown[-5:]} at last"
            self.require(shown == list(range(end)), told)


class Order(Invariant):
    """A reader gets the rows of a process in the order in which the process sent them to the partition."""

    name = "ORDER"

    def __init__(self) -> None:
        self._last: dict[tuple[str, TransactionPartition, str, str], int] = {}

    def reads(self, reader: str, log: PartitionLog, position: int, read: Read, rows: list[tuple[int, Row]]) -> None:
        for offset, row in rows:
            one = (reader, log.key, row.tag.client, row.tag.member)
            last = self._last.get(one, -1)
            self.require(row.number > last, f"{reader} reads {row} at {offset} behind number {last}")
            self._last[one] = row.number


class Fenced(Invariant):
    """No write or marker follows a marker of a higher epoch; no producer commits after the init of a later one."""

    name = "FENCED"

    def __init__(self) -> None:
        self._markers: dict[tuple[TransactionPartition, int], Entry] = {}
        self._initialized: dict[str, ProducerIdentity] = {}
        self._generations: dict[str, int] = {}
        self._clients: dict[int, str] = {}

    def starts(self, client: str, generation: int) -> None:
        self._generations[client] = generation

    def committed(self, log: PartitionLog, entry: Entry) -> None:
        place = (log.key, entry.producer.producer_id)
        marker = self._markers.get(place)
        if marker is not None:
            told = f"partition {log.key.partition} has {entry} behind {marker}"
            self.require(entry.producer.producer_epoch >= marker.producer.producer_epoch, told)
            if entry.marker is not None and marker.marker is not None:
                self.require(entry.marker.coordinator_epoch >= marker.marker.coordinator_epoch, told)
        if entry.envelope.is_control:
            self._markers[place] = entry
        elif entry.row is not None:
            self._clients.setdefault(entry.producer.producer_id, entry.row.tag.client)

    def wrote(self, changes: list[Change]) -> None:
        for key, value in changes:
            if not isinstance(value, TransactionMetadata):
                continue
            latest = self._initialized.get(key.transactional_id)
            if value.phase is Phase.EMPTY:
                self._initialized[key.transactional_id] = value.producer
            elif value.end_reason is EndReason.PRODUCER and value.phase is Phase.PREPARE_COMMIT and latest is not None:
                author = value.previous
                stale = author is not None and author.producer_id == latest.producer_id and author < latest
                self.require(not stale, f"{key.transactional_id}: {author} commits after the init of {latest}")
            elif value.end_reason is EndReason.MEMBERS and value.phase is Phase.PREPARE_COMMIT:
                for client in (self._clients[producer_id] for producer_id in value.committed):
                    told = f"{client} commits members, the present generation is {value.generation}"
                    self.require(self._generations[client] == value.generation, told)


class Stable(Invariant):
    """In peace every transaction ends: the last stable offset of each partition reaches the high watermark."""

    name = "STABLE"

    def at_the_end(self, world: TransactionWorld) -> None:
        for log in (*world.partitions, *([] if world.offsets is None else [world.offsets])):
            stable = log.state.last_stable_offset(log.high_watermark)
            told = f"the last stable offset of {log.key} stays at {stable}, {log.high_watermark}"
            self.require(stable == log.high_watermark == len(log.entries), told)


class Decisions:
    """The decisions in the committed records of `__transaction_state`."""

    def __init__(self) -> None:
        self._pages: defaultdict[str, dict[int, WritersPage]] = defaultdict(dict)
        self._commits: dict[tuple[str, int, ProducerIdentity], bool] = {}
        self._committed: set[ProducerIdentity] = set()

    def is_committed(self, producer: ProducerIdentity) -> bool:
        return producer in self._committed

    def of(self, changes: list[Change]) -> list[tuple[tuple[str, int, ProducerIdentity], bool, bool | None]]:
        """Each decision with its result, and with that of an earlier record of the same transaction."""
        found = []
        for key, value in changes:
            name = key.transactional_id
            if isinstance(key, PageKey):
                if isinstance(value, WritersPage):
                    self._pages[name][key.page] = value
                else:
                    self._pages[name].pop(key.page, None)
            elif isinstance(value, TransactionMetadata) and value.phase in (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT):
                for writer in self._writers(name, value):
                    decision = (name, value.number, writer.producer)
                    commit = writer.producer.producer_id in value.committed
                    found.append((decision, commit, self._commits.get(decision)))
                    self._commits[decision] = commit
                    if commit:
                        self._committed.add(writer.producer)
        return found

    def _writers(self, name: str, metadata: TransactionMetadata) -> list[Writer]:
        pages = [page.writers for page in self._pages[name].values() if page.number == metadata.number]
        return [writer for writers in (metadata.writers, *pages) for writer in writers if writer.partitions]


class AllInvariants(Invariant):
    """All invariants as one."""

    def __init__(self) -> None:
        self._all: tuple[Invariant, ...] = (
            ReadCommitted(),
            Order(),
            Fenced(),
            Stable(),
            OffsetsWithData(),
            Atomic(),
        )

    def starts(self, client: str, generation: int) -> None:
        for one in self._all:
            one.starts(client, generation)

    def sends(self, key: TransactionPartition, row: Row) -> None:
        for one in self._all:
            one.sends(key, row)

    def ends(self, tag: Tag, *, commit: bool) -> None:
        for one in self._all:
            one.ends(tag, commit=commit)

    def answered(self, tag: Tag, *, commit: bool) -> None:
        for one in self._all:
            one.answered(tag, commit=commit)

    def batch_done(self, name: str, batch: int) -> None:
        for one in self._all:
            one.batch_done(name, batch)

    def transforms(self, tag: Tag, starts: dict[int, int], ends: dict[int, int]) -> None:
        for one in self._all:
            one.transforms(tag, starts, ends)

    def fetches(self, offsets: dict[int, int]) -> None:
        for one in self._all:
            one.fetches(offsets)

    def wrote(self, changes: list[Change]) -> None:
        for one in self._all:
            one.wrote(changes)

    def committed(self, log: PartitionLog, entry: Entry) -> None:
        for one in self._all:
            one.committed(log, entry)

    def reads(self, reader: str, log: PartitionLog, position: int, read: Read, rows: list[tuple[int, Row]]) -> None:
        for one in self._all:
            one.reads(reader, log, position, read, rows)

    def at_the_end(self, world: TransactionWorld) -> None:
        for one in self._all:
            one.at_the_end(world)

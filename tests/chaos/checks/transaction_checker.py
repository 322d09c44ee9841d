# SPDX-License-Identifier: Apache-2.0
"""Finds anomalies in the history of transactions: Adya's G0 and G1a to G1c, in the manner of Elle, and violations of
exactly-once.

The checker reads only the clients' histories, not the records of coordinators. Edges between transactions
are dependencies: of a write on the write before it in its partition (ww), of a transaction on the records that its
client has read (wr), and of a transaction on each that ended before it began (real time). Transactions of different
producers that run at the same time may interleave in any order, as in Kafka, so ww edges count between transactions of
one transactional id, or of any ids together with real time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.checks.history import Offset, Partition
from tests.chaos.checks.transaction_history import End, Transaction, TransactionHistory


class TransactionAnomaly(StrEnum):
    """Each anomaly has a forged history in the checker's own tests."""

    G0 = "dirty write (G0)"
    """A transaction that began after the end of another one has a record before a record of that one."""
    G1A = "aborted read (G1a)"
    """A reader got a record of an aborted transaction."""
    G1B = "intermediate read (G1b)"
    """A read_committed reader got records of a transaction in a partition, and skipped another one of them."""
    G1C = "circular information flow (G1c)"
    """Transactions depend on each other in a circle, by reads and writes."""
    TORN = "torn"
    """At the end, the log has some records of a transaction, and lacks others."""
    LOST_WRITE = "lost write"
    """The commit was acknowledged, and a record is not there at the end."""
    DUPLICATED = "duplicated"
    """A record is at two offsets."""
    DISORDERED = "disordered"
    """Two records of a transactional id are not in the order in which they were sent."""
    NEVER_SENT = "never sent"
    """A record without a sender."""
    UNREPEATABLE = "unrepeatable"
    """At one offset, a reader got a different record from another reader, or from the log at the end."""
    WENT_BACK = "went back"
    """A reader got an offset again, or a lower one."""
    UNSEEN = "unseen"
    """A reader of everything did not get a record that is visible at the end."""
    INPUT_TWICE = "input twice"
    """Two transactions that are visible at the end were made from one input record."""
    INPUT_LOST = "input lost"
    """No transaction that is visible at the end was made from an input record below the committed offset."""
    OFFSET_APART = "offset apart"
    """The committed offset of the input is not the end of the input that the transactions in the log cover."""
    GAVE_UP = "gave up"
    """A client raised an error and should have continued, or did not finish in time."""


@dataclass(frozen=True, slots=True)
class TransactionFinding:
    """One anomaly and its description."""

    anomaly: TransactionAnomaly
    story: str

    def __str__(self) -> str:
        return f"transactions, {self.anomaly}: {self.story}"


def check_transactions(history: TransactionHistory) -> list[TransactionFinding]:
    checker = _Checker(history)
    found = [
        *checker.of_the_log(),
        *checker.of_transactions(),
        *checker.of_order(),
        *checker.of_readers(),
        *checker.of_real_time(),
        *checker.of_circles(),
        *checker.of_input(),
    ]
    return [*found, *(TransactionFinding(TransactionAnomaly.GAVE_UP, failure) for failure in history.failures)]


class _Checker:
    def __init__(self, history: TransactionHistory) -> None:
        self._history = history
        self._author = {value: one for one in history.transactions for _, value in one.sent}
        self._places: defaultdict[str, list[tuple[Partition, Offset]]] = defaultdict(list)
        for partition, records in history.final.items():
            for offset, value in records:
                self._places[value].append((partition, offset))

    def of_the_log(self) -> Iterator[TransactionFinding]:
        for value, places in self._places.items():
            if len(places) > 1:
                yield TransactionFinding(TransactionAnomaly.DUPLICATED, f"{value!r} is at {places}")
            author = self._author.get(value)
            if author is None:
                yield TransactionFinding(TransactionAnomaly.NEVER_SENT, f"{value!r} is at {places}")
            elif author.end is End.ABORTED:
                yield TransactionFinding(TransactionAnomaly.G1A, f"{value!r} at {places}, {author.tag} was aborted")

    def of_transactions(self) -> Iterator[TransactionFinding]:
        for one in self._history.transactions:
            missing = [value for _, value in one.sent if value not in self._places]
            if one.end is End.COMMITTED and missing:
                yield TransactionFinding(TransactionAnomaly.LOST_WRITE, f"{one.tag} was committed without {missing}")
            if missing and len(missing) < len(one.sent):
                yield TransactionFinding(TransactionAnomaly.TORN, f"{one.tag} is there without {missing}")

    def of_order(self) -> Iterator[TransactionFinding]:
        """Order within a transaction; the order between transactions is that of real time."""
        for one in self._history.transactions:
            last: dict[Partition, tuple[Offset, str]] = {}
            for partition, value in one.sent:
                for found, offset in self._places.get(value, ()):
                    before = last.get(found)
                    if before is not None and before[0] > offset:
                        story = f"{value!r} is at {offset} of partition {partition}, {before[1]!r} at {before[0]}"
                        yield TransactionFinding(TransactionAnomaly.DISORDERED, story)
                    last[found] = (offset, value)

    def of_readers(self) -> Iterator[TransactionFinding]:
        log = {(partition, offset): value for value, places in self._places.items() for partition, offset in places}
        given: defaultdict[tuple[str, Partition], dict[Offset, str]] = defaultdict(dict)
        told: dict[tuple[Partition, Offset], str] = {}
        for one in self._history.polled:
            place = (one.partition, one.offset)
            mine = given[one.reader, one.partition]
            if mine and one.offset <= next(reversed(mine)):
                yield TransactionFinding(TransactionAnomaly.WENT_BACK, f"{one.reader} was given {place} late")
            mine[one.offset] = one.value
            author = self._author.get(one.value)
            if author is not None and author.end is End.ABORTED:
                yield TransactionFinding(TransactionAnomaly.G1A, f"{one.reader} was given {one.value!r} at {place}")
            if told.setdefault(place, one.value) != one.value or log.get(place) != one.value:
                story = f"{one.reader} was given {one.value!r} at {place}, {log.get(place)!r} is there"
                yield TransactionFinding(TransactionAnomaly.UNREPEATABLE, story)
        for (reader, partition), mine in given.items():
            yield from self._intermediate(reader, partition, mine)
        yield from self._unseen(given)

    def _intermediate(
        self, reader: str, partition: Partition, given: dict[Offset, str]
    ) -> Iterator[TransactionFinding]:
        position = max(given)
        values = set(given.values())
        for tag, author in {one.tag: one for one in map(self._author.get, values) if one is not None}.items():
            passed = [
                value
                for where, value in author.sent
                if where == partition
                and value not in values
                and any(found == partition and offset < position for found, offset in self._places[value])
            ]
            missing = [value for where, value in author.sent if where == partition and value not in self._places]
            if passed or missing:
                story = f"{reader} was given some of {tag} in partition {partition}, not {passed or missing}"
                yield TransactionFinding(TransactionAnomaly.G1B, story)

    def _unseen(self, given: defaultdict[tuple[str, Partition], dict[Offset, str]]) -> Iterator[TransactionFinding]:
        for reader in self._history.readers:
            for partition, records in self._history.final.items():
                missing = [offset for offset, _ in records if offset not in given[reader, partition]]
                if missing:
                    story = f"{reader} was not given {len(missing)} records of partition {partition}: {missing[:5]}"
                    yield TransactionFinding(TransactionAnomaly.UNSEEN, story)

    def of_real_time(self) -> Iterator[TransactionFinding]:
        """Check the order in each partition: records of a transaction precede those of one that began later."""
        for partition, records in self._history.final.items():
            earliest: Transaction | None = None  # the first to end of the transactions that come later in the partition
            for _, value in reversed(records):
                author = self._author.get(value)
                if author is None:
                    continue
                if earliest is not None and earliest.ended_s is not None and earliest.ended_s < author.began_s:
                    story = f"{author.tag} began after {earliest.tag} had ended, and is before it in {partition}"
                    yield TransactionFinding(TransactionAnomaly.G0, story)
                    break
                if author.ended_s is not None and (earliest is None or author.ended_s < (earliest.ended_s or 0.0)):
                    earliest = author

    def of_input(self) -> Iterator[TransactionFinding]:
        """The committed transactions cover each input partition without a gap, up to the committed offset."""
        covered: defaultdict[Partition, list[tuple[Offset, Offset, str]]] = defaultdict(list)
        for one in self._history.transactions:
            if any(value in self._places for _, value in one.sent):
                for partition, first, end in one.covers:
                    covered[partition].append((first, end, one.tag))
        for partition in covered.keys() | self._history.input_offsets.keys():
            last, last_tag = 0, "the begin"
            for first, end, tag in sorted(covered[partition]):
                story = f"{last_tag} ends at {last} of input {partition}, and {tag} covers [{first}, {end})"
                if first < last:
                    yield TransactionFinding(TransactionAnomaly.INPUT_TWICE, story)
                elif first > last:
                    yield TransactionFinding(TransactionAnomaly.INPUT_LOST, story)
                last, last_tag = max(last, end), tag
            offset = self._history.input_offsets.get(partition, 0)
            if offset != last:
                story = f"the offset of input {partition} is {offset}, and {last_tag} ends at {last}"
                yield TransactionFinding(TransactionAnomaly.OFFSET_APART, story)

    def of_circles(self) -> Iterator[TransactionFinding]:
        """Strongly connected transactions: by reads, and by writes of one transactional id."""
        edges: defaultdict[str, set[str]] = defaultdict(set)
        for one in self._history.transactions:
            for value in one.seen:
                author = self._author.get(value)
                if author is not None and author.tag != one.tag:
                    edges[author.tag].add(one.tag)
        for records in self._history.final.values():
            last: dict[str, str] = {}
            for _, value in records:
                author = self._author.get(value)
                if author is None:
                    continue
                before = last.get(author.name, author.tag)
                if before != author.tag:
                    edges[before].add(author.tag)
                last[author.name] = author.tag
        for circle in _circles(edges):
            yield TransactionFinding(TransactionAnomaly.G1C, f"each depends on the next: {sorted(circle)}")


def _circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in list(edges):
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            child = next(following, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(_popped(stack, on_stack, node))
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                on_stack.add(child)
                work.append((child, iter(sorted(edges.get(child, ())))))
            elif child in on_stack:
                low[node] = min(low[node], index[child])
    return [one for one in found if len(one) > 1]


def _popped(stack: list[str], on_stack: set[str], last: str) -> list[str]:
    component: list[str] = []
    while not component or component[-1] != last:
        component.append(stack.pop())
        on_stack.discard(component[-1])
    return component

# SPDX-License-Identifier: Apache-2.0
"""The transactional ids of one partition of `__transaction_state`: requests change them, and give answers and records.

Changes are applied immediately. The caller writes the records, in order, before it sends the answer to this request or
to a later one. If the write fails, the caller drops the coordinator and replays the log. The caller names committed
records in `committed`: only then has a decision markers, since a lost decision may be replaced by another decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from tidemark.core.transactions import refusals
from tidemark.core.transactions.phases import CLOSED, PREPARED, Input, Phase
from tidemark.core.transactions.requests import (
    Abort,
    Addition,
    CommitMembers,
    Description,
    End,
    Init,
    Initialized,
    Join,
    Marker,
    Outcome,
    Situation,
)
from tidemark.core.transactions.state import (
    LAST_EPOCH,
    Change,
    EndReason,
    PageKey,
    ProducerIdentity,
    TransactionKey,
    TransactionMetadata,
    TransactionPartition,
    WritersPage,
)
from tidemark.core.transactions.transactional_id import TransactionalId
from tidemark.model import TidemarkError

PARTITIONS_MAX: Final = 100_000
"""Partitions of one transaction, counted for each writer."""
MEMBERS_MAX: Final = 50_000
"""Members of one transaction; the record of a decision names the committed members."""
_ENDED: Final = (
    "the described transaction has ended, so nothing was aborted; `tidemark transaction describe` shows whether "
    "another one is open"
)


class TransactionCoordinator:
    """The transactional ids of one partition, for one leadership of it.

    Args:
        coordinator_epoch: leader epoch of the partition; it fences markers of older coordinators (rule X14).

    Attributes:
        _ids: by name, the id that was changed longest ago first.
        _ongoing: the ids with an open transaction; the timeout check reads only these.
        _prepared: the ids whose decision is not known to every partition.
        _decided: ids of `_prepared` whose decision is committed.
    """

    def __init__(self, coordinator_epoch: int) -> None:
        self._coordinator_epoch = coordinator_epoch
        self._ids: dict[str, TransactionalId] = {}
        self._ongoing: dict[str, TransactionalId] = {}
        self._prepared: dict[str, TransactionalId] = {}
        self._decided: dict[str, TransactionalId] = {}

    @classmethod
    def replay(cls, changes: Iterable[Change], now_ms: int, coordinator_epoch: int) -> TransactionCoordinator:
        """Rebuild the state from committed records of the log; open transactions get a full timeout (rule X14)."""
        found: dict[str, TransactionMetadata] = {}
        pages: dict[str, dict[int, WritersPage]] = {}
        for key, value in {(type(change.key), change.key): change for change in changes}.values():
            if isinstance(key, TransactionKey) and isinstance(value, TransactionMetadata):
                found[key.transactional_id] = value
            elif isinstance(key, PageKey) and isinstance(value, WritersPage):
                pages.setdefault(key.transactional_id, {})[key.page] = value
        coordinator = cls(coordinator_epoch)
        for transactional_id, metadata in sorted(found.items(), key=lambda one: one[1].updated_ms):
            known = TransactionalId(transactional_id, metadata)
            known.replay(pages.get(transactional_id, {}), now_ms)
            coordinator._index(known)
        coordinator._decided.update(coordinator._prepared)
        return coordinator

    # -- reads -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of transactional ids."""
        return len(self._ids)

    @property
    def ongoing(self) -> Collection[str]:
        """The ids with an open transaction."""
        return self._ongoing.keys()

    @property
    def prepared(self) -> Collection[str]:
        """The ids with markers to send; their decisions are committed."""
        return self._decided.keys()

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether `init` and `end` need a fresh producer id: the id is new, or its producer's epochs are exhausted."""
        known = self._ids.get(transactional_id)
        return known is None or known.metadata.producer.is_exhausted

    def markers(self, transactional_id: str) -> Iterator[Marker]:
        """The markers of an id without an answer, one for each writer. None unless the id is one of `prepared`."""
        known = self._decided.get(transactional_id)
        if known is None or known.open is None:
            return
        committed = frozenset(known.metadata.committed)
        for writer in known.open.all_writers():
            if writer.partitions:
                yield Marker(
                    transactional_id,
                    _marker_identity(writer.producer),
                    writer.producer.producer_id in committed,
                    self._coordinator_epoch,
                    writer.partitions,
                )

    def describe(self, transactional_id: str) -> Description:
        """The state of a transactional id.

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, TRANSACTION_NOT_FOUND.
        """
        known = self._find(transactional_id)
        return Description(transactional_id, known.metadata, tuple(known.open.all_writers()) if known.open else ())

    def summaries(
        self, now: Situation, phases: Collection[Phase] = (), open_longer_than_ms: int = 0
    ) -> list[tuple[str, TransactionMetadata]]:
        """The ids, sorted, filtered by phase and by the time for which a transaction has been open."""
        places = (self._ongoing, self._prepared) if open_longer_than_ms > 0 else (self._ids,)
        return sorted(
            (known.transactional_id, known.metadata)
            for place in places
            for known in place.values()
            if (not phases or known.metadata.phase in phases)
            and (open_longer_than_ms <= 0 or now.wall_ms - known.metadata.started_ms > open_longer_than_ms)
        )

    # -- the producer of an id (rules X10-X12) -------------------------------------------------------------------

    def init(self, asked: Init, now: Situation) -> Outcome[Initialized | TidemarkError]:
        """Give a producer its identity, and fence the earlier ones (rule X10).

        Returns:
            An error as the answer, CONCURRENT_TRANSACTIONS, if an open transaction is aborted first: this error is sent
            when the changes are committed, as every answer.

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED,
                CONCURRENT_TRANSACTIONS; then the state is unchanged.
        """
        refusals.check_transactional_id(asked.transactional_id)
        refusals.check_timeout(asked.timeout_ms, now.settings)
        known = self._ids.get(asked.transactional_id)
        if known is None:
            return self._create(asked, now)
        metadata = known.metadata
        repeated = asked.producer is not None and asked.producer == metadata.previous
        is_late = repeated and metadata.phase is Phase.ONGOING  # the identity of the first answer is in use
        if asked.producer is not None and (is_late or (not repeated and asked.producer != metadata.producer)):
            raise refusals.fenced(asked.transactional_id, asked.producer, metadata)
        phase = known.next_phase(Input.INIT)
        if phase is not Phase.EMPTY:
            aborted = self._abort(known, EndReason.INIT, now, previous=asked.producer)
            return Outcome(
                refusals.concurrent(asked.transactional_id, "its open transaction is aborted first"), aborted
            )
        producer, generation = metadata.producer, metadata.generation
        if not repeated:
            producer, generation = self._next_identity(known, asked.fresh_producer_id), generation + 1
        elif producer.producer_epoch > LAST_EPOCH:
            producer = self._next_identity(known, asked.fresh_producer_id)
        initialized = replace(
            metadata,
            producer=producer,
            previous=asked.producer,
            generation=generation,
            timeout_ms=asked.timeout_ms,
            phase=phase,
        )
        return Outcome(_initialized(initialized), self._changed(known, known.update(initialized, now)))

    def add_partitions(self, asked: Addition, now: Situation) -> Outcome[None]:
        """Add partitions to the open transaction, or begin one (rule X11).

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, TRANSACTION_NOT_FOUND, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
                TRANSACTION_ABORTABLE; then the state is unchanged.
        """
        known = self._find(asked.transactional_id)
        _check_writer(known, asked.producer)
        known.next_phase(Input.WRITE)
        if known.open is not None and known.open.partition_count + len(asked.partitions) > PARTITIONS_MAX:
            raise refusals.abortable(asked.transactional_id, f"its transaction has {PARTITIONS_MAX} partitions at most")
        if not asked.partitions:
            return Outcome(None)
        return Outcome(None, self._changed(known, known.write(asked.producer, asked.partitions, now)))

    def end(self, asked: End, now: Situation) -> Outcome[ProducerIdentity]:
        """Commit or abort the writes of the id's own producer; members are aborted (rule X12).

        Returns:
            The identity for the next transaction.

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, TRANSACTION_NOT_FOUND, PRODUCER_FENCED, INVALID_TXN_STATE,
                CONCURRENT_TRANSACTIONS; then the state is unchanged.
        """
        known = self._find(asked.transactional_id)
        metadata = known.metadata
        if asked.producer != metadata.producer:
            return Outcome(_answer_of_repeated_end(asked, metadata))
        decision = Input.COMMIT if asked.commit else Input.ABORT
        known.next_phase(decision)
        decided = replace(
            metadata,
            producer=self._next_identity(known, asked.fresh_producer_id),
            previous=asked.producer,
            end_reason=EndReason.PRODUCER,
        )
        committed = (asked.producer.producer_id,) if asked.commit else ()
        return Outcome(decided.producer, self._changed(known, known.decide(decided, decision, committed, now)))

    # -- members (rule X16) --------------------------------------------------------------------------------------

    def join(self, asked: Join, now: Situation) -> Outcome[ProducerIdentity]:
        """Make a fresh producer id a member of the open transaction, or of a new one (rule X16).

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, TRANSACTION_NOT_FOUND, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
                TRANSACTION_ABORTABLE; then the state is unchanged.
        """
        known = self._find(asked.transactional_id)
        refusals.check_generation(asked.transactional_id, asked.generation, known.metadata)
        known.next_phase(Input.WRITE)
        if known.open is not None and len(known.open.writers) >= MEMBERS_MAX:
            raise refusals.abortable(asked.transactional_id, f"its transaction has {MEMBERS_MAX} members at most")
        member = ProducerIdentity(asked.fresh_producer_id, 0)
        return Outcome(member, self._changed(known, known.write(member, (), now)))

    def keep(self, transactional_id: str, generation: int, now: Situation) -> Outcome[None]:
        """Start the timeout of the open transaction again; nothing is stored (rule X16).

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, TRANSACTION_NOT_FOUND, PRODUCER_FENCED.
        """
        known = self._find(transactional_id)
        refusals.check_generation(transactional_id, generation, known.metadata)
        if known.open is not None:
            known.open.renewed_ms = now.now_ms
        return Outcome(None)

    def commit_members(self, asked: CommitMembers, now: Situation) -> Outcome[bool]:
        """Commit the writes of the named members, and abort all other writes (rule X16).

        Returns:
            Whether this or a later sequence was committed before; then the members of a repeated batch are aborted.

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, INVALID_REQUEST, TRANSACTION_NOT_FOUND, PRODUCER_FENCED,
                CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE; then the state is unchanged.
        """
        known = self._find(asked.transactional_id)
        metadata = known.metadata
        refusals.check_sequence(asked.sequence)
        refusals.check_generation(asked.transactional_id, asked.generation, metadata)
        writers = known.open.writers if known.open is not None else {}
        if 0 <= asked.sequence <= metadata.last_sequence:
            is_late = asked.producer_ids and not any(one in writers for one in asked.producer_ids)
            if metadata.phase is not Phase.ONGOING or is_late:
                return Outcome(True)
            return Outcome(True, self._abort(known, EndReason.MEMBERS, now, previous=metadata.producer))
        decision = Input.COMMIT if asked.producer_ids else Input.ABORT
        known.next_phase(decision)
        missing = [one for one in asked.producer_ids if one not in writers]
        if missing:
            raise refusals.abortable(
                asked.transactional_id,
                f"{len(missing)} producer ids are not members of its open transaction, {missing[0]} is the first. An "
                "earlier transaction had them, and was aborted by its timeout or by an operator",
            )
        decided = replace(
            metadata,
            producer=_raised(metadata.producer) if known.is_own_writer() else metadata.producer,
            previous=metadata.producer if known.is_own_writer() else metadata.previous,
            last_sequence=max(asked.sequence, metadata.last_sequence),
            end_reason=EndReason.MEMBERS,
        )
        return Outcome(False, self._changed(known, known.decide(decided, decision, asked.producer_ids, now)))

    # -- changes without a producer (rules X12-X15) --------------------------------------------------------------

    def committed(self, changes: Iterable[Change]) -> tuple[str, ...]:
        """The records of these changes of this coordinator are committed, and so are all earlier ones (rule X12).

        Returns:
            The ids that are in `prepared` by these changes: their markers may be sent now.
        """
        decided = []
        for key, value in changes:
            known = self._prepared.get(key.transactional_id)
            if known is not None and known.metadata == value:
                self._decided[known.transactional_id] = known
                decided.append(known.transactional_id)
        return tuple(decided)

    def marked(
        self,
        transactional_id: str,
        marker: ProducerIdentity,
        partitions: Iterable[TransactionPartition],
        now: Situation,
    ) -> Outcome[bool]:
        """Partitions have a marker, or were deleted (rules X12, X15); late and repeated answers have no effect.

        Args:
            transactional_id: the id.
            marker: the identity of the marker.
            partitions: the partitions that answered.
            now: the time.

        Returns:
            Whether this answer completes the transaction.
        """
        known = self._prepared.get(transactional_id)
        if known is None:
            return Outcome(False)
        writer = ProducerIdentity(marker.producer_id, marker.producer_epoch - 1)
        changes = self._changed(known, known.marked(writer, partitions, now))
        return Outcome(bool(changes), changes)

    def abort(self, asked: Abort, now: Situation) -> Outcome[None]:
        """Abort the open transaction in place of its producer, which is fenced (an operator's request).

        Raises:
            TidemarkError: INVALID_TRANSACTIONAL_ID, TRANSACTION_NOT_FOUND, INVALID_TXN_STATE: no transaction is open,
                or another one than the request names.
        """
        known = self._find(asked.transactional_id)
        metadata = known.metadata
        is_aborted = metadata.end_reason is EndReason.OPERATOR and metadata.phase in (
            Phase.PREPARE_ABORT,
            Phase.COMPLETE_ABORT,
        )
        if is_aborted and asked.generation in (0, metadata.generation - 1, metadata.generation):
            return Outcome(None)
        if asked.generation and (asked.generation, asked.started_ms) != (metadata.generation, metadata.started_ms):
            raise refusals.invalid_state(asked.transactional_id, _ENDED)
        if metadata.phase is Phase.ONGOING:
            return Outcome(None, self._abort(known, EndReason.OPERATOR, now, previous=None))
        raise refusals.invalid_state(asked.transactional_id, f"no transaction is open, its phase is {metadata.phase}")

    def abort_overdue(self, now: Situation) -> Outcome[tuple[str, ...]]:
        """Abort the transactions that are open for longer than their timeout (rule X13); returns their ids."""
        overdue = [
            known
            for known in self._ongoing.values()
            if known.open is not None and now.now_ms - known.open.renewed_ms >= known.metadata.timeout_ms
        ]
        changes: list[Change] = []
        for known in overdue:
            changes.extend(self._abort(known, EndReason.TIMEOUT, now, previous=known.metadata.producer))
        return Outcome(tuple(known.transactional_id for known in overdue), tuple(changes))

    def excuse(self, ms: int) -> None:
        """The coordinator was stopped for `ms`: extend the timeout of every open transaction by that time."""
        for known in self._ongoing.values():
            if known.open is not None:
                known.open.renewed_ms += ms

    def expire(self, now: Situation, limit: int = 500) -> Outcome[tuple[str, ...]]:
        """Delete ids that were not used for `transactional.id.expiration.ms`, `limit` at most (rule X13)."""
        expired: list[TransactionalId] = []
        for known in self._ids.values():
            if len(expired) >= limit or now.wall_ms - known.metadata.updated_ms < now.settings.expiration_ms:
                break
            if known.metadata.phase in CLOSED:
                expired.append(known)
        changes: list[Change] = []
        for known in expired:
            changes.extend(known.delete())
            del self._ids[known.transactional_id]
        return Outcome(tuple(known.transactional_id for known in expired), tuple(changes))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _find(self, transactional_id: str) -> TransactionalId:
        refusals.check_transactional_id(transactional_id)
        known = self._ids.get(transactional_id)
        if known is None:
            raise refusals.not_found(transactional_id)
        return known

    def _create(self, asked: Init, now: Situation) -> Outcome[Initialized | TidemarkError]:
        if asked.producer is not None:
            raise refusals.fenced(asked.transactional_id, asked.producer, None)
        if asked.fresh_producer_id is None:
            raise refusals.concurrent(asked.transactional_id, "it needs a producer id")
        # An id may have expired: no producer of that time has a generation as large as the present time.
        created = TransactionMetadata(
            ProducerIdentity(asked.fresh_producer_id, 0), generation=max(1, now.wall_ms), timeout_ms=asked.timeout_ms
        )
        known = TransactionalId(asked.transactional_id, created)
        return Outcome(_initialized(created), self._changed(known, known.update(created, now)))

    def _abort(
        self, known: TransactionalId, reason: EndReason, now: Situation, *, previous: ProducerIdentity | None
    ) -> tuple[Change, ...]:
        """Abort an ongoing transaction without a request of its producer.

        The producer is fenced if it has written to the transaction; after INIT and OPERATOR always.
        """
        metadata = known.metadata
        fences_all = reason in (EndReason.INIT, EndReason.OPERATOR)
        if fences_all or known.is_own_writer():
            aborted = replace(
                metadata,
                producer=_raised(metadata.producer),
                previous=previous,
                generation=metadata.generation + fences_all,
                end_reason=reason,
            )
        else:
            aborted = replace(metadata, end_reason=reason)
        return self._changed(known, known.decide(aborted, Input.ABORT, (), now))

    def _changed(self, known: TransactionalId, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        if changes:
            self._index(known)
        return changes

    def _index(self, known: TransactionalId) -> None:
        name = known.transactional_id
        self._ids.pop(name, None)
        self._ids[name] = known
        for place, belongs in (
            (self._ongoing, known.metadata.phase is Phase.ONGOING),
            (self._prepared, known.metadata.phase in PREPARED),
            (self._decided, False),
        ):
            if belongs:
                place[name] = known
            else:
                place.pop(name, None)

    def _next_identity(self, known: TransactionalId, fresh_producer_id: int | None) -> ProducerIdentity:
        producer = known.metadata.producer
        if not producer.is_exhausted:
            return _raised(producer)
        if fresh_producer_id is None:
            raise refusals.concurrent(
                known.transactional_id, f"the epochs of producer {producer.producer_id} are used up"
            )
        return ProducerIdentity(fresh_producer_id, 0)


def _initialized(metadata: TransactionMetadata) -> Initialized:
    return Initialized(metadata.producer, metadata.generation, metadata.last_sequence)


def _raised(producer: ProducerIdentity) -> ProducerIdentity:
    """The identity after a decision without a request of the producer; beyond `LAST_EPOCH` no producer can have it."""
    return ProducerIdentity(producer.producer_id, min(producer.producer_epoch, LAST_EPOCH) + 1)


def _marker_identity(writer: ProducerIdentity) -> ProducerIdentity:
    assert writer.producer_epoch <= LAST_EPOCH, f"{writer} cannot have a marker"
    return ProducerIdentity(writer.producer_id, writer.producer_epoch + 1)


def _check_writer(known: TransactionalId, producer: ProducerIdentity) -> None:
    """Raise PRODUCER_FENCED unless the producer is the id's own producer, or a member of the open transaction."""
    is_member = known.metadata.phase is Phase.ONGOING and known.open is not None and known.open.is_writer(producer)
    is_own = producer == known.metadata.producer and producer.producer_epoch <= LAST_EPOCH
    if not is_member and not is_own:
        raise refusals.fenced(known.transactional_id, producer, known.metadata)


def _answer_of_repeated_end(asked: End, metadata: TransactionMetadata) -> ProducerIdentity:
    """The answer to an End that was decided before, but whose answer may have been lost (rule X12).

    Raises:
        TidemarkError: PRODUCER_FENCED; INVALID_TXN_STATE if the other result was decided.
    """
    committed = metadata.phase in (Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT)
    aborted = metadata.phase in (Phase.PREPARE_ABORT, Phase.COMPLETE_ABORT)
    is_last = asked.producer == metadata.previous and metadata.end_reason is EndReason.PRODUCER
    if not is_last or not (committed or aborted):
        raise refusals.fenced(asked.transactional_id, asked.producer, metadata)
    if committed is not asked.commit:
        raise refusals.invalid_state(
            asked.transactional_id, f"its transaction was {'committed' if committed else 'aborted'} already"
        )
    return metadata.producer

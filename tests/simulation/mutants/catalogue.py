# SPDX-License-Identifier: Apache-2.0
"""Known defects of replication, each put into the shipping code for one test; an invariant must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import pytest
from tidemark.broker.node.session_lease import Lease
from tidemark.core.controller import leader_election
from tidemark.core.controller.leader_election import BrokerFacts
from tidemark.core.messages import Chunk, EpochEnd, Report
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.clean_start import RegistrationVerdict
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader import isr as isr_rules
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.core.replication.leader.follower_session import PartitionSender
from tidemark.core.replication.leader.isr import Committed, IsrState, PendingExpand
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.replica_manager import ReplicaManager
from tidemark.core.replication.streams import BrokerStreams
from tidemark.model import BrokerId, LeaderEpoch, Offset

from tests.simulation.invariants.catalogue import all_invariants
from tests.simulation.lives import Failure, live
from tests.simulation.mutants import cut_tails as of_tails
from tests.simulation.mutants import damaged_replicas as of_damage
from tests.simulation.mutants import follower_fetch as of_nearest
from tests.simulation.mutants import hurt_nodes as of_nodes
from tests.simulation.mutants import log_start as of_fronts
from tests.simulation.mutants import reassignment as of_moves
from tests.simulation.mutants import schemas as of_schemas
from tests.simulation.mutants import transactions as of_transactions
from tests.simulation.nodes.broker import BrokerNode
from tests.simulation.plan import Plan, Recipe, draw
from tests.simulation.recipes import GROUP_COMMIT, HARSH, MIXED, MOVES

Patch = Callable[[Any], None]
WORLDS_MAX = 400
NAMES = frozenset({"LIVENESS", "AssertionError", "STORAGE", "READ-IN-ORDER", *(one.name for one in all_invariants())})
"""Names of checks that may catch a mutant: an invariant, a missing recovery in peace, an assertion of the core (rule
E3).
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: the rule that it breaks, the kind of world that shows it, and the function that makes it."""

    patch: Patch
    rule: str
    recipe: Recipe = MIXED

    @property
    def name(self) -> str:
        return self.patch.__name__


class Caught(NamedTuple):
    """The first world that showed a mutant."""

    plan: Plan
    failure: Failure
    worlds: int


def catch(mutant: Mutant, seeds: Iterable[int] = range(WORLDS_MAX)) -> Caught | None:
    """Live worlds with the mutant until an invariant fails."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutant.patch(monkeypatch)
        for worlds, seed in enumerate(seeds, 1):
            plan = draw(seed, mutant.recipe)
            failure = live(plan).failure
            if failure is not None:
                assert failure.name in NAMES, f"{mutant.name} breaks the test itself: {failure.message}"
                return Caught(plan, failure, worlds)
    return None


SHOWN_BY = {
    "truncates_to_the_high_watermark": 27,
    "reconciles_in_one_round": 64,
    "keeps_producers_when_cut": 6,
    "change_in_flight_does_not_hold": 9,
    "commits_below_min_isr": 19,
    "takes_in_unflushed_followers": 9,
    "goes_on_after_a_conflict": 8,
    "keeps_fetching_from_the_old_leader": 4,
    "elects_uncleanly_on_suspicion": 8,
    "trusts_void_entries": 32,
    "calls_every_registration_clean": 24,
    "settles_in_the_old_epoch": 51,
    "a_cancelled_move_drops_the_replica_in_sync": 14,
    "keeps_records_of_an_unknown_epoch": 13,
    "remembers_a_failed_append": 1,
    "gives_records_committed_in_another_epoch": 7,
    "answers_while_its_log_is_cut": 21,
    "leads_though_damaged": 19,
    "heals_with_any_leader": 65,
    "keeps_its_healing_to_itself": 94,
    "repairs_with_any_epoch": 4419,
    "leads_on_with_damage": 5,
    "believes_older_nodes": 116,
    "takes_a_cut_tail_for_a_torn_write": 2,
    "takes_versions_for_known_when_they_are_sent": 9,
    "reads_a_schema_once": 5,
    "believes_the_version_that_a_batch_states": 8,
    "leaves_out_columns_by_the_first_batch": 12,
    "prunes_by_the_newest_version": 2,
    "followers_pass_over_markers": 0,
}
"""The first seed that shows a mutant, for mutants that the first few worlds do not show."""


def seeds_for(mutant: Mutant) -> Iterable[int]:
    """The recorded seed, then all others: another order of events may need another world."""
    recorded = SHOWN_BY.get(mutant.name)
    return chain(() if recorded is None else (recorded,), range(WORLDS_MAX))


# -- worlds that show certain defects early -----------------------------------------------------------------------

RESTARTS = Recipe("restarts", faults=14, weights={"crash": 5, "crash_all": 3, "power": 3, "break": 1})
POWER = Recipe("power", faults=14, election_wait_ms=0, weights={"power": 6, "crash": 3, "cut": 2})
DEPOSED = Recipe("deposed", faults=14, weights={"cut_zookeeper": 4, "cut_controller": 6, "cut": 2, "isolate": 2})
STOPPED = Recipe("stopped", faults=8, produces=60, weights={"pause": 6, "cut_zookeeper": 3, "cut_controller": 1})
IMPATIENT = Recipe(
    "impatient", idempotent=60, faults=10, weights={"pause": 3, "cut": 5, "slow_disk": 3, "cut_controller": 4}
)
FLIPS = Recipe(
    "flips",
    idempotent=120,
    producers=12,
    produces=5,
    faults=24,
    lost_replies=0.4,
    weights={"depose": 6, "elect": 8, "isolate": 4, "cut": 2},
)
FORGETFUL = Recipe("forgetful", faults=14, checkpoint_ms=3000, weights={"isolate": 5, "cut": 3, "crash_all": 4})
GROUP_COMMIT_POWER = replace(
    RESTARTS, name="group-commit-power", group_commit=True, weights={"power": 6, "cut": 3, "isolate": 3}
)
FORKS = Recipe(
    "forks",
    min_isr=1,
    unclean=True,
    produces=60,
    faults=18,
    weights={"depose": 3, "isolate": 6, "crash": 5, "crash_all": 2},
)
UNANSWERED = replace(
    HARSH,
    name="unanswered",
    lost_answers=0.4,
    weights={"lost_answers": 4, "cut": 6, "isolate": 4, "crash": 4, "break": 2},
)


# -- truncation ------------------------------------------------------------------------------------------------------


def truncates_to_the_high_watermark(monkeypatch: Any) -> None:
    """The protocol before KIP-101: truncate to the own high watermark, without leader epochs."""

    def on_epoch_end(self: PartitionFollower, answer: EpochEnd) -> None:
        self.ask_again = False
        self._truncate(self.log.high_watermark, answer.leader_epoch)

    monkeypatch.setattr(PartitionFollower, "on_epoch_end", on_epoch_end)


def never_truncates(monkeypatch: Any) -> None:
    """Fetch without reconciling, and send every requested record."""
    monkeypatch.setattr(PartitionFollower, "_ask", PartitionFollower._fetch)
    monkeypatch.setattr("tidemark.core.replication.streams.diverging_end", lambda *_: None)


def reconciles_in_one_round(monkeypatch: Any) -> None:
    """Ask once and truncate once; a log that diverges earlier stays as it is (KIP-279)."""

    def on_epoch_end(self: PartitionFollower, answer: EpochEnd) -> None:
        self.ask_again = False
        self._truncate(Offset(min(answer.end_offset, self.log.log_end_offset)), answer.leader_epoch)

    monkeypatch.setattr(PartitionFollower, "on_epoch_end", on_epoch_end)
    monkeypatch.setattr("tidemark.core.replication.streams.diverging_end", lambda *_: None)


def keeps_producers_when_cut(monkeypatch: Any) -> None:
    """A truncation leaves the producer states as they are."""
    original = ReplicaLog.truncated

    def truncated(self: ReplicaLog, event: ev.LogTruncated) -> None:
        producers = self.producers
        original(self, event)
        self.producers = producers

    monkeypatch.setattr(ReplicaLog, "truncated", truncated)


# -- the high watermark ----------------------------------------------------------------------------------------------


def change_in_flight_does_not_hold(monkeypatch: Any) -> None:
    """The high watermark follows the ISR of a change in flight, without members that leave or have not joined yet."""

    def holding(isr: IsrState) -> frozenset[BrokerId]:
        if isinstance(isr, Committed | PendingExpand):
            return frozenset(isr.confirmed.state.isr_ids)
        return frozenset(isr.proposed.isr_ids)

    monkeypatch.setattr(isr_rules, "maximal_isr", holding)


def commits_below_min_isr(monkeypatch: Any) -> None:
    """The high watermark advances with an ISR of any size."""
    monkeypatch.setattr(isr_rules, "confirmed_enough", lambda isr: True)


def skips_members_that_have_not_acknowledged(monkeypatch: Any) -> None:
    """A member that has not fetched in this epoch does not hold the high watermark."""

    def isr_moved(self: PartitionLeader) -> None:
        original(self)
        for progress in self._holding:
            if not progress.acknowledged:
                progress.acknowledged = True
                progress.log_end_offset = Offset(1 << 60)

    original = PartitionLeader._isr_moved
    monkeypatch.setattr(PartitionLeader, "_isr_moved", isr_moved)


def states_a_stale_high_watermark(monkeypatch: Any) -> None:
    """A new leader states its last known high watermark."""
    monkeypatch.setattr(PartitionLeader, "may_state_high_watermark", property(lambda self: True))


def reports_before_it_has_written(monkeypatch: Any) -> None:
    """A follower acknowledges records that it has only received."""
    on_chunk = PartitionFollower.on_chunk

    def report(self: PartitionFollower) -> None:
        if self.phase.value == "fetching" and self._connected:
            assert self.link is not None
            log = self.log
            self.link.report(Report(log.partition, self.leader_epoch, log.next_offset, log.flushed_offset))

    def chunk_and_report(self: PartitionFollower, chunk: Chunk, now_ms: int) -> None:
        on_chunk(self, chunk, now_ms)
        self.report()

    monkeypatch.setattr(PartitionFollower, "report", report)
    monkeypatch.setattr(PartitionFollower, "on_chunk", chunk_and_report)


def goes_by_written_offsets(monkeypatch: Any) -> None:
    """The high watermark of a group-commit topic follows log ends."""
    monkeypatch.setattr(ReplicaLog, "counts_flushes", lambda self, group_commit: None)


def forgets_its_own_disk(monkeypatch: Any) -> None:
    """A leader counts its followers' flushes, and its own page cache."""
    monkeypatch.setattr(ReplicaLog, "safe_offset", property(lambda self: self.log_end_offset))


def takes_in_unflushed_followers(monkeypatch: Any) -> None:
    """A follower joins once it has written everything."""
    monkeypatch.setattr(PartitionLeader, "_is_flushed", lambda self, progress: True)


# -- the ISR ---------------------------------------------------------------------------------------------------------


def goes_on_after_a_conflict(monkeypatch: Any) -> None:
    """A leader whose ISR write had a conflict continues with its cached ISR."""

    def failed(self: PartitionLeader, *, unknown: bool) -> None:
        self._settle(self._isr.confirmed)

    monkeypatch.setattr(PartitionLeader, "on_isr_write_failed", failed)


def takes_in_lagging_followers(monkeypatch: Any) -> None:
    """Any follower that fetches joins the ISR."""
    monkeypatch.setattr(PartitionLeader, "_may_join", lambda self, progress, sender: True)


def takes_in_before_the_epoch_start(monkeypatch: Any) -> None:
    """A follower joins once it has reached the last high watermark that the new leader knows (KIP-320)."""

    def joins(self: PartitionLeader, progress: FollowerProgress, sender: PartitionSender) -> bool:
        return progress.acknowledged and progress.log_end_offset >= self.log.high_watermark

    monkeypatch.setattr(PartitionLeader, "_may_join", joins)


def takes_in_an_old_registration(monkeypatch: Any) -> None:
    """A follower joins under the broker epoch of an earlier registration, and no component checks it."""

    def write(self: PartitionLeader, change: Any, proposed: Any, joining: Any) -> None:
        old = {one.broker_id: one._replace(broker_epoch=one.broker_epoch - 1) for one in joining}
        isr = tuple(old.get(one.broker_id, one) for one in proposed.isr)
        proposed = replace(proposed, isr=isr)
        original(self, replace(change, proposed=proposed), proposed, ())

    original = PartitionLeader._write
    monkeypatch.setattr(PartitionLeader, "_write", write)


# -- fencing ---------------------------------------------------------------------------------------------------------


def produces_and_serves_though_fenced(monkeypatch: Any) -> None:
    """A deposed leader stops neither after a lost session nor after a newer epoch at a follower."""
    monkeypatch.setattr(ReplicaManager, "fence", lambda self, replica, why: None)


def keeps_fetching_from_the_old_leader(monkeypatch: Any) -> None:
    """A follower that learns a newer epoch keeps its stream to the old leader, and takes its chunks."""

    def on_leader_message(self: BrokerStreams, event: ev.LeaderMessageArrived, now_ms: int) -> None:
        old = left.get((id(self), event.leader))
        for chunk in event.message.chunks:
            if old is not None and old.log.quiet and chunk.batches and chunk.continues_from == old.log.next_offset:
                old.log.append_as_follower(chunk.batches)
        original(self, event, now_ms)

    def unfollow(self: BrokerStreams, follower: PartitionFollower) -> None:
        left[id(self), follower.leader] = follower

    left: dict[tuple[int, BrokerId], PartitionFollower] = {}
    original = BrokerStreams.on_leader_message
    monkeypatch.setattr(BrokerStreams, "on_leader_message", on_leader_message)
    monkeypatch.setattr(BrokerStreams, "unfollow", unfollow)
    monkeypatch.setattr(PartitionFollower, "leave", lambda self, newer_leader_epoch: None)


def resumes_an_epoch_after_a_restart(monkeypatch: Any) -> None:
    """A restarted leader leads on in its old epoch: neither the controller nor the leader refuses that."""

    def begin(self: ReplicaManager, replica: Any, log: ReplicaLog, command: Any, now_ms: int) -> Any:
        replica.fenced_epoch = LeaderEpoch(-1)
        if log.epochs.latest == command.state.leader_epoch:
            log.epochs._entries.pop()
        return begin_leading(self, replica, log, command, now_ms)

    begin_leading = ReplicaManager._begin_leading
    monkeypatch.setattr(BrokerFacts, "is_present", lambda self, entry: entry.broker_id in self.live)
    monkeypatch.setattr(ReplicaManager, "_begin_leading", begin)


def lease_by_timer(monkeypatch: Any) -> None:
    """A timer checks the lease from time to time, instead of each answer that is sent."""
    start = BrokerNode._start

    async def start_with_timer(self: BrokerNode) -> None:
        def look() -> None:
            held[id(self.lease)] = self.engine.now < self.store.lease_valid_until_ms()
            self.after(50, look)

        self.after(50, look)
        await start(self)

    held: dict[int, bool] = {}
    monkeypatch.setattr(BrokerNode, "_start", start_with_timer)
    monkeypatch.setattr(Lease, "covers", lambda self, partition: held.get(id(self), False))


# -- producers -------------------------------------------------------------------------------------------------------


def forgets_producers(monkeypatch: Any) -> None:
    """Leaders do not recognize duplicates."""
    monkeypatch.setattr(ProducerStates, "check", lambda self, envelope: None)


def answers_duplicates_at_once(monkeypatch: Any) -> None:
    """A duplicate is acknowledged before the batch that it repeats is committed."""

    def on_produce(self: PartitionLeader, event: ev.ProduceArrived) -> None:
        original(self, event)
        waiting = self._waiting.get(event.request_id)
        if waiting is not None and not any(isinstance(one, fx.AppendToLog) for one in self._ctx.effects):
            del self._waiting[event.request_id]
            self._reply(event.request_id, waiting.base_offset, None)

    original = PartitionLeader.on_produce
    monkeypatch.setattr(PartitionLeader, "on_produce", on_produce)


# -- the controller --------------------------------------------------------------------------------------------------


def elects_uncleanly_on_suspicion(monkeypatch: Any) -> None:
    """A suspected leader is replaced by any broker that answers heartbeats, in sync or not."""

    def decide(partition: Any, brokers: Any) -> Any:
        state = partition.state
        decision = original(partition, brokers)
        if state is None or decision is not None or state.leader not in brokers.suspected:
            return decision
        others = [one for one in partition.assigned if one in brokers.live and one not in brokers.suspected]
        return leader_election.elect_uncleanly(partition, brokers, others[0]) if others else None

    def cleanly(partition: Any, brokers: Any, successor: Any) -> Any:
        decision = elect(partition, brokers, successor)
        return replace(decision, state=replace(decision.state, lineage=partition.state.lineage))

    original, elect = leader_election.decide, leader_election.elect_uncleanly
    monkeypatch.setattr("tidemark.core.controller.controller.decide", decide)
    monkeypatch.setattr(leader_election, "elect_uncleanly", cleanly)


def trusts_void_entries(monkeypatch: Any) -> None:
    """A replica that lost records with the power is elected nevertheless."""
    monkeypatch.setattr(BrokerFacts, "is_void", lambda self, entry, **_: False)


def calls_every_registration_clean(monkeypatch: Any) -> None:
    """Each registration counts as clean, even after a crash of the machine."""
    verdict = RegistrationVerdict(clean=True, reason="why not")
    monkeypatch.setattr("tidemark.broker.lifecycle.registration.judge_registration", lambda *_, **__: verdict)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(truncates_to_the_high_watermark, "E2", RESTARTS),
    Mutant(never_truncates, "E2, E4"),
    Mutant(reconciles_in_one_round, "E2", FORKS),
    Mutant(keeps_producers_when_cut, "P3", FLIPS),
    Mutant(change_in_flight_does_not_hold, "R3", UNANSWERED),
    Mutant(commits_below_min_isr, "R4", FORGETFUL),
    Mutant(skips_members_that_have_not_acknowledged, "R3"),
    Mutant(states_a_stale_high_watermark, "E6"),
    Mutant(reports_before_it_has_written, "R1"),
    Mutant(goes_by_written_offsets, "R3", GROUP_COMMIT),
    Mutant(forgets_its_own_disk, "R3", GROUP_COMMIT),
    Mutant(takes_in_unflushed_followers, "R8", GROUP_COMMIT_POWER),
    Mutant(goes_on_after_a_conflict, "R9", UNANSWERED),
    Mutant(takes_in_lagging_followers, "R8"),
    Mutant(takes_in_before_the_epoch_start, "R8", FORGETFUL),
    Mutant(takes_in_an_old_registration, "R8, Z3"),
    Mutant(produces_and_serves_though_fenced, "E4, F2", DEPOSED),
    Mutant(keeps_fetching_from_the_old_leader, "F3", DEPOSED),
    Mutant(resumes_an_epoch_after_a_restart, "E5", RESTARTS),
    Mutant(lease_by_timer, "F1", STOPPED),
    Mutant(forgets_producers, "P2"),
    Mutant(answers_duplicates_at_once, "P2", IMPATIENT),
    Mutant(elects_uncleanly_on_suspicion, "C6", DEPOSED),
    Mutant(trusts_void_entries, "T2", POWER),
    Mutant(calls_every_registration_clean, "T1", POWER),
    Mutant(of_moves.settles_in_the_old_epoch, "M1", of_moves.MOVES_AND_CANCELS),
    Mutant(of_moves.settles_before_all_are_in_sync, "M1", MOVES),
    Mutant(of_moves.stops_before_it_settles, "M1", MOVES),
    Mutant(of_moves.a_cancelled_move_drops_the_replica_in_sync, "M1", of_moves.CANCELS_WHILE_AWAY),
    Mutant(of_moves.ends_the_node_before_the_isr, "M1", MOVES),
    Mutant(of_moves.forgets_the_throttle, "M2", MOVES),
    Mutant(of_moves.keeps_removed_replicas, "M1", MOVES),
    Mutant(of_moves.obeys_commands_in_any_order, "F4", of_moves.LATE_MOVES),
    *(Mutant(patch, *where) for patch, where in of_fronts.RULES.items()),
    *(Mutant(patch, *where) for patch, where in of_nearest.RULES.items()),
    *(Mutant(patch, *where) for patch, where in of_damage.RULES.items()),
    *(Mutant(patch, *where) for patch, where in of_nodes.RULES.items()),
    *(Mutant(patch, *where) for patch, where in of_tails.RULES.items()),
    *(Mutant(patch, *where) for patch, where in of_schemas.RULES.items()),
    *(Mutant(patch, *where) for patch, where in of_transactions.RULES.items()),
)

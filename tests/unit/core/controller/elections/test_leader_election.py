# SPDX-License-Identifier: Apache-2.0
"""Leader election after broker failures and returns (rules C2, C6, E5, T2-T4, R9), as scenarios of one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tidemark.core.controller.leader_election import (
    BrokerFacts,
    Decision,
    PartitionFacts,
    decide,
    elect_uncleanly,
    settle,
)
from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch

EVERYBODY = (0, 1, 2)


def entry(broker: int, epoch: int = 0) -> IsrEntry:
    return IsrEntry(BrokerId(broker), BrokerEpoch(epoch))


def brokers(*ids: int, suspected: Sequence[int] = (), **epochs_and_unclean: dict[int, int]) -> BrokerFacts:
    """Live brokers at epoch 0; `epochs={1: 3}` and `unclean={1: 3}` override that."""
    epochs = epochs_and_unclean.get("epochs", {})
    unclean = epochs_and_unclean.get("unclean", {})
    return BrokerFacts(
        live={BrokerId(broker): BrokerEpoch(epochs.get(broker, 0)) for broker in ids},
        unclean_at={BrokerId(broker): BrokerEpoch(epoch) for broker, epoch in unclean.items()},
        suspected=frozenset(BrokerId(broker) for broker in suspected),
    )


class Partition:
    """One partition, with one decision after the other."""

    def __init__(self, *assigned: int, min_isr: int = 2, unclean_allowed: bool = False) -> None:
        self.facts = PartitionFacts(tuple(BrokerId(one) for one in assigned), min_isr, None, unclean_allowed)

    def sees(self, facts: BrokerFacts) -> Decision | None:
        decision = decide(self.facts, facts)
        if decision is not None:
            self.facts = self.facts._replace(state=decision.state, refused_epoch=None, damaged=frozenset())
        assert decide(self.facts, facts) is None, "a decision that is not the last word"
        return decision

    @property
    def state(self) -> LeaderAndIsr:
        assert self.facts.state is not None
        return self.facts.state

    @property
    def elr_ids(self) -> set[int]:
        return {one.broker_id for one in self.state.elr}

    def leader_writes(self, *isr: IsrEntry) -> None:
        self.facts = self.facts._replace(state=replace(self.state, isr=isr, elr=()))


def healthy(*assigned: int, min_isr: int = 2, unclean_allowed: bool = False) -> Partition:
    partition = Partition(*(assigned or EVERYBODY), min_isr=min_isr, unclean_allowed=unclean_allowed)
    partition.sees(brokers(*(assigned or EVERYBODY)))
    return partition


def test_a_new_partition_is_led_by_its_first_live_replica_with_every_live_one_in_sync() -> None:
    partition = Partition(2, 0, 1)
    decision = partition.sees(brokers(0, 1, epochs={0: 7}))
    assert decision is not None
    assert (partition.state.leader, partition.state.leader_epoch) == (0, 0)
    assert partition.state.isr == (entry(0, 7), entry(1))
    assert partition.state.min_isr == 2
    assert decision.checked == {0: 7, 1: 0}


def test_a_new_partition_waits_while_no_replica_is_live() -> None:
    partition = Partition(0, 1, 2)
    assert partition.sees(brokers(3, 4)) is None


def test_a_new_partition_is_led_by_an_unsuspected_replica_and_adds_suspected_ones_only_for_min_isr() -> None:
    partition = Partition(0, 1, 2)
    partition.sees(brokers(0, 1, 2, suspected=[0]))
    assert (partition.state.leader, partition.state.isr_ids) == (1, (1, 2))
    few = Partition(0, 1)
    few.sees(brokers(0, 1, suspected=[0]))
    assert (few.state.leader, set(few.state.isr_ids)) == (1, {0, 1})


def test_a_resigned_leader_that_is_alone_in_sync_gives_way_to_a_live_eligible_replica() -> None:
    partition = healthy()
    partition.facts = partition.facts._replace(
        state=replace(partition.state, isr=(entry(0),), elr=(entry(1), entry(2))),
        resigned_epoch=partition.state.leader_epoch,
    )
    assert decide(partition.facts, brokers(0)) is None
    assert decide(partition.facts, brokers(0, 1, 2, suspected=[1, 2])) is None
    back = replace(brokers(0, 2, epochs={2: 1}), crashed_at={BrokerId(2): BrokerEpoch(1)})
    assert decide(partition.facts, back) is None, "broker 2 crashed: the end of its log is in doubt (rule T7)"
    assert decide(partition.facts, replace(brokers(0, 2), unheard=frozenset({BrokerId(2)}))) is None
    decision = partition.sees(brokers(0, 2))
    assert decision is not None
    assert not decision.unclean
    assert (partition.state.leader, partition.state.leader_epoch, partition.state.isr) == (2, 1, (entry(2),))
    assert partition.elr_ids == {0, 1}


def test_a_resigned_leader_with_as_many_in_sync_replicas_as_wanted_stays_without_a_successor() -> None:
    partition = Partition(0, 1, 2, min_isr=1)
    partition.sees(brokers(0))
    partition.facts = partition.facts._replace(resigned_epoch=partition.state.leader_epoch)
    assert partition.sees(brokers(0, 1, 2)) is None


def test_a_healthy_partition_needs_no_decision() -> None:
    assert healthy().sees(brokers(0, 1, 2)) is None


def test_when_the_leader_fails_the_next_in_sync_replica_leads_in_a_new_epoch() -> None:
    partition = healthy()
    decision = partition.sees(brokers(1, 2))
    assert decision is not None
    assert (partition.state.leader, partition.state.leader_epoch) == (1, 1)
    assert partition.state.isr_ids == (1, 2)
    assert partition.state.elr == ()
    assert decision.checked == {1: 0}


def test_a_failed_follower_leaves_the_isr_and_leader_and_epoch_stay() -> None:
    partition = healthy()
    decision = partition.sees(brokers(0, 1))
    assert decision is not None
    assert (partition.state.leader, partition.state.leader_epoch) == (0, 0)
    assert partition.state.isr_ids == (0, 1)
    assert decision.checked == {}


def test_a_live_replica_that_was_not_in_sync_is_never_elected() -> None:
    partition = healthy()
    partition.leader_writes(entry(0), entry(1))
    partition.sees(brokers(2))
    assert partition.state.leader == NO_LEADER
    assert partition.elr_ids == {0, 1}


def test_replicas_that_leave_below_min_isr_enter_the_elr_until_min_isr_is_reached() -> None:
    partition = healthy()
    partition.sees(brokers(0, 1))
    assert partition.elr_ids == set()
    partition.sees(brokers(0))
    assert (partition.state.leader, partition.state.leader_epoch) == (0, 0)
    assert partition.state.elr == (entry(1),)
    partition.facts = partition.facts._replace(state=replace(partition.state, isr=(entry(0), entry(2, 1))))
    partition.sees(brokers(0, 2, epochs={2: 1}))
    assert partition.state.elr == ()


@pytest.mark.parametrize("first", [1, 2])
def test_after_all_replicas_failed_the_first_clean_return_is_elected_from_the_elr(first: int) -> None:
    partition = healthy(0, 1, 2)
    partition.sees(brokers())
    assert (partition.state.leader, partition.state.leader_epoch) == (NO_LEADER, 1)
    assert partition.state.isr == ()
    assert partition.elr_ids == {0, 1, 2}
    assert partition.state.last_known == (entry(0),)
    decision = partition.sees(brokers(first, epochs={first: 1}))
    assert decision is not None
    assert (partition.state.leader, partition.state.leader_epoch) == (first, 2)
    assert partition.state.isr == (entry(first, 1),)
    assert partition.elr_ids == {0, 1, 2} - {first}
    assert decision.checked == {first: 1}
    assert not decision.unclean
    assert partition.state.lineage == 0


def test_after_failures_one_by_one_only_elr_members_are_elected() -> None:
    partition = healthy()
    partition.sees(brokers(0, 1))  # 2 left while two stayed: records may be committed without 2
    partition.sees(brokers(0))
    partition.sees(brokers())
    assert partition.elr_ids == {0, 1}
    partition.sees(brokers(2, epochs={2: 1}))
    assert partition.state.leader == NO_LEADER
    partition.sees(brokers(1, 2, epochs={1: 1, 2: 1}))
    assert partition.state.leader == 1


def test_a_leader_elected_from_the_elr_with_m_of_one_empties_it() -> None:
    partition = healthy(0, 1, min_isr=1)
    partition.sees(brokers())
    partition.facts = partition.facts._replace(state=replace(partition.state, elr=(entry(0), entry(1))))
    partition.sees(brokers(1, epochs={1: 1}))
    assert (partition.state.leader, partition.state.elr) == (1, ())


def test_an_unclean_return_is_not_elected_and_the_next_clean_one_is() -> None:
    partition = healthy()
    partition.sees(brokers())
    partition.sees(brokers(0, epochs={0: 1}, unclean={0: 1}))
    assert partition.state.leader == NO_LEADER
    assert partition.elr_ids == {1, 2}
    partition.sees(brokers(0, 2, epochs={0: 1, 2: 1}, unclean={0: 1}))
    assert (partition.state.leader, partition.elr_ids) == (2, {1})


def test_after_unclean_returns_no_leader_is_elected_and_last_known_is_kept() -> None:
    partition = healthy()
    partition.sees(brokers())
    ones = dict.fromkeys(EVERYBODY, 1)
    partition.sees(brokers(0, 1, 2, epochs=ones, unclean=ones))
    assert (partition.state.leader, partition.state.elr) == (NO_LEADER, ())
    assert partition.state.last_known == (entry(0),)


def test_an_unclean_return_voids_older_entries_even_after_a_clean_restart() -> None:
    partition = healthy()
    partition.sees(brokers())
    partition.sees(brokers(0, epochs={0: 2}, unclean={0: 1}))
    assert (partition.state.leader, partition.elr_ids) == (NO_LEADER, {1, 2})


def test_an_entry_of_the_unclean_registration_itself_is_valid() -> None:
    partition = healthy()
    partition.leader_writes(entry(0), entry(1), entry(2, 3))
    assert partition.sees(brokers(0, 1, 2, epochs={2: 3}, unclean={2: 3})) is None


def test_a_restarted_leader_whose_failure_was_not_seen_is_replaced() -> None:
    partition = healthy()
    partition.sees(brokers(0, 1, 2, epochs={0: 1}))
    assert (partition.state.leader, partition.state.leader_epoch) == (1, 1)
    assert partition.state.isr_ids == (1, 2)


def test_a_restarted_leader_that_was_alone_leads_again_in_a_higher_epoch() -> None:
    partition = healthy(0, 1)
    partition.sees(brokers(0))
    decision = partition.sees(brokers(0, epochs={0: 1}))
    assert decision is not None
    assert (partition.state.leader, partition.state.leader_epoch) == (0, 1)
    assert partition.state.isr == (entry(0, 1),)
    assert partition.elr_ids == {1}
    assert decision.checked == {0: 1}


def test_a_restarted_follower_leaves_the_isr_until_its_leader_adds_it() -> None:
    partition = healthy()
    partition.sees(brokers(0, 1, 2, epochs={2: 1}))
    assert (partition.state.leader, partition.state.leader_epoch, partition.state.isr_ids) == (0, 0, (0, 1))


def test_broker_zero_is_elected_like_any_other() -> None:
    partition = healthy(1, 0)
    partition.sees(brokers(0))
    assert (partition.state.leader, partition.state.isr_ids) == (0, (0,))
    alone = healthy(0, min_isr=1)
    alone.sees(brokers())
    assert (alone.state.leader, alone.state.elr, alone.state.last_known) == (NO_LEADER, (entry(0),), (entry(0),))
    alone.sees(brokers(0, epochs={0: 1}))
    assert (alone.state.leader, alone.state.leader_epoch, alone.state.lineage) == (0, 2, 0)


def test_a_suspected_leader_is_replaced_and_leaves_where_min_isr_others_stay() -> None:
    partition = healthy()
    partition.sees(brokers(0, 1, 2, suspected=[0]))
    assert (partition.state.leader, partition.state.leader_epoch) == (1, 1)
    assert partition.state.isr_ids == (1, 2)


def test_a_suspected_leader_is_replaced_and_stays_in_the_isr_below_min_isr() -> None:
    partition = healthy(0, 1)
    partition.sees(brokers(0, 1, suspected=[0]))
    assert (partition.state.leader, set(partition.state.isr_ids), partition.state.elr) == (1, {0, 1}, ())


def test_a_suspected_leader_that_is_alone_in_sync_stays() -> None:
    partition = healthy(0, 1, min_isr=1)
    partition.sees(brokers(0))
    assert partition.sees(brokers(0, suspected=[0])) is None


def test_when_all_are_suspected_nothing_changes() -> None:
    assert healthy().sees(brokers(0, 1, 2, suspected=[0, 1, 2])) is None


def test_a_broker_that_is_no_longer_suspected_causes_no_election() -> None:
    partition = healthy(0, 1)
    partition.sees(brokers(0, 1, suspected=[0]))
    assert partition.sees(brokers(0, 1)) is None


def test_a_single_replica_leads_again_after_a_clean_return_in_its_lineage() -> None:
    partition = healthy(3, min_isr=1)
    partition.sees(brokers())
    decision = partition.sees(brokers(3, epochs={3: 1}))
    assert decision is not None
    assert not decision.unclean
    assert (partition.state.leader, partition.state.lineage) == (3, 0)


def test_a_single_replica_leads_again_after_an_unclean_return_in_a_new_lineage() -> None:
    partition = healthy(3, min_isr=1)
    partition.sees(brokers())
    decision = partition.sees(brokers(3, epochs={3: 1}, unclean={3: 1}))
    assert decision is not None
    assert decision.unclean
    assert (partition.state.leader, partition.state.lineage, partition.state.isr) == (3, 1, (entry(3, 1),))


def test_an_unclean_election_asks_the_replicas_first_and_begins_a_lineage() -> None:
    partition = healthy(unclean_allowed=True)
    partition.sees(brokers(1))
    partition.sees(brokers())
    ones = dict.fromkeys(EVERYBODY, 1)
    back = brokers(0, 1, 2, epochs=ones, unclean=ones)
    partition.sees(back)
    assert partition.state.leader == NO_LEADER
    before = partition.state
    decision = elect_uncleanly(partition.facts, back, BrokerId(2))
    assert decision.unclean
    assert decision.checked == {2: 1}
    new = decision.state
    assert (new.leader, new.leader_epoch, new.lineage) == (2, before.leader_epoch + 1, 1)
    assert (new.isr, new.elr, new.last_known) == ((entry(2, 1),), (), ())


def test_where_allowed_a_single_replica_leads_at_once_after_an_unclean_return() -> None:
    partition = healthy(3, min_isr=1, unclean_allowed=True)
    partition.sees(brokers())
    decision = partition.sees(brokers(3, epochs={3: 1}, unclean={3: 1}))
    assert decision is not None
    assert decision.unclean
    assert (partition.state.leader, partition.state.lineage) == (3, 1)


def test_no_live_replica_is_elected_uncleanly_where_the_topic_forbids_it() -> None:
    partition = healthy()
    partition.leader_writes(entry(0))
    partition.facts = partition.facts._replace(state=replace(partition.state, elr=()))
    partition.sees(brokers(1, 2))
    assert partition.state.leader == NO_LEADER


def test_a_clean_election_is_preferred_to_an_allowed_unclean_one() -> None:
    partition = healthy(unclean_allowed=True)
    partition.sees(brokers())
    decision = partition.sees(brokers(2, epochs={2: 1}))
    assert decision is not None
    assert not decision.unclean
    assert partition.state.lineage == 0


def test_a_leader_that_refuses_its_epoch_gets_a_higher_one() -> None:
    partition = healthy()
    partition.facts = partition.facts._replace(refused_epoch=LeaderEpoch(0))
    decision = partition.sees(brokers(0, 1, 2))
    assert decision is not None
    assert (partition.state.leader, partition.state.leader_epoch, partition.state.isr_ids) == (0, 1, EVERYBODY)
    assert decision.checked == {0: 0}


def test_a_refusal_of_an_older_epoch_changes_nothing() -> None:
    partition = healthy()
    partition.sees(brokers(1, 2))
    partition.facts = partition.facts._replace(refused_epoch=LeaderEpoch(0))
    assert partition.sees(brokers(1, 2)) is None


def test_a_damaged_replica_leaves_isr_and_elr() -> None:
    partition = healthy(0, 1)
    partition.facts = partition.facts._replace(damaged=frozenset({entry(0)}))
    partition.sees(brokers(0, 1))
    assert (partition.state.leader, partition.state.isr_ids, partition.state.elr) == (1, (1,), ())


# -- changes by a lowered m, a flush, a broken directory and a move ------------------------------------------------


def test_a_lowered_m_empties_the_elr_in_the_same_write_if_there_is_a_leader_and_else_leaves_it() -> None:
    few = healthy(min_isr=3)
    few.sees(brokers(0))
    assert few.elr_ids == {1, 2}
    decision = decide(few.facts._replace(min_isr=2), brokers(0))
    assert decision is not None
    assert (decision.state.min_isr, decision.state.elr) == (2, ()), "though fewer than m are in sync"
    few.sees(brokers())
    assert few.elr_ids == {0, 1, 2}
    decision = decide(few.facts._replace(min_isr=2), brokers())
    assert decision is not None
    assert {one.broker_id for one in decision.state.elr} == {0, 1, 2}


@pytest.mark.parametrize("flushed", [True, False])
def test_flushed_records_are_lost_only_with_their_log_directory(flushed: bool) -> None:
    """An unclean registration without a missing log directory spares group-commit partitions (rule T1)."""
    partition = healthy()
    decision = decide(partition.facts._replace(flushed=flushed), brokers(0, 1, 2, unclean={1: 1}))
    assert (decision is None) == flushed
    lost = replace(brokers(0, 1, 2), lost_at={BrokerId(1): BrokerEpoch(1)})
    decision = decide(partition.facts._replace(flushed=True), lost)
    assert decision is not None
    assert decision.state.isr_ids == (0, 2)


def test_with_m_of_one_a_suspected_leader_leaves_one_other_behind() -> None:
    partition = healthy(0, 1, min_isr=1)
    partition.sees(brokers(0, 1, suspected=[0]))
    assert (partition.state.leader, partition.state.isr_ids) == (1, (1,))


def test_when_all_are_suspected_any_leader_stays() -> None:
    partition = healthy()
    partition.sees(brokers(1, 2))
    partition.leader_writes(*(entry(one) for one in EVERYBODY))
    assert partition.state.leader == 1
    assert partition.sees(brokers(0, 1, 2, suspected=[0, 1, 2])) is None


@pytest.mark.parametrize("allowed", [False, True])
def test_a_single_replica_is_not_elected_while_another_one_is_eligible_unless_that_is_allowed(allowed: bool) -> None:
    state = LeaderAndIsr(NO_LEADER, LeaderEpoch(4), (), (entry(0),), min_isr=1)
    decision = decide(PartitionFacts((BrokerId(1),), 1, state, allowed), brokers(1))
    assert (decision is not None) == allowed
    assert decision is None or (decision.unclean and decision.state.leader == 1)


def test_a_single_replica_that_cannot_open_its_log_is_not_elected() -> None:
    partition = healthy(0, min_isr=1)
    partition.facts = partition.facts._replace(offline=frozenset({BrokerId(0)}), unclean_allowed=True)
    partition.sees(brokers(0))
    assert partition.state.leader == NO_LEADER


def test_step_7_keeps_in_sync_target_replicas_and_a_leader_among_them() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(4), (entry(0), entry(1)), (entry(2), entry(3)), min_isr=3)
    facts = PartitionFacts(EVERYBODY, 3, state)

    def settled(*target: int, fences: bool = False) -> tuple[int, int, tuple[int, ...], list[int]] | None:
        decision = settle(facts, brokers(*EVERYBODY), target, 2, fences=fences)
        if decision is None:
            return None
        new = decision.state
        assert new.min_isr == 2
        return new.leader, new.leader_epoch, new.isr_ids, [one.broker_id for one in new.elr]

    assert settled(0, 1) == (1, 4, (0, 1), [])
    assert settled(0, 1, fences=True) == (1, 5, (0, 1), [])
    assert settled(1, 2) == (1, 4, (1,), [2]), "a removed ELR member leaves the ELR"
    assert settled(0, 2) == (0, 5, (0,), [2])
    assert settled(2) is None, "no target replica is in sync"

# SPDX-License-Identifier: Apache-2.0
"""A damaged leaderAndISR is written again only where the answers prove that no acknowledged record is lost (Z4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.controller.state_rebuild import EPOCHS_ABOVE, overwritten, rebuilt, untrusted
from tidemark.core.messages import HeldState, PartitionCommand
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TopicPartition,
    VersionedState,
)

ASSIGNED = tuple(map(BrokerId, (0, 1, 2)))


def state(leader: int, epoch: int, *isr: int, elr: tuple[int, ...] = (), min_isr: int = 2) -> LeaderAndIsr:
    entries, eligible = (tuple(IsrEntry(BrokerId(one), BrokerEpoch(0)) for one in some) for some in (isr, elr))
    return LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), entries, eligible, min_isr=min_isr)


def held(known: LeaderAndIsr, *, led: bool = False, version: int = 3) -> HeldState:
    partition = TopicPartition("t", 0)
    return HeldState(PartitionCommand(partition, ReplicaIdentity("t", "i"), ASSIGNED, known, version), led, None)


def answers(**said: HeldState) -> dict[BrokerId, HeldState]:
    return {BrokerId(int(name[1:])): one for name, one in said.items()}


def test_the_isr_of_the_newest_leader_is_trusted_in_a_much_higher_epoch() -> None:
    leads, follows = held(state(0, 5, 0, 1), led=True), held(state(0, 5, 0, 1, 2))
    found = rebuilt(ASSIGNED, 2, None, answers(b0=leads, b1=follows, b2=follows))
    assert found == replace(state(NO_LEADER, 5 + EPOCHS_ABOVE, 0, 1))


def test_a_silent_replica_is_no_obstacle_where_it_could_commit_nothing_by_itself() -> None:
    said = answers(b0=held(state(0, 5, 0, 1), led=True), b1=held(state(0, 5, 0, 1)))
    assert isinstance(rebuilt(ASSIGNED, 2, None, said), LeaderAndIsr)
    why = rebuilt(ASSIGNED, 1, None, said)
    assert isinstance(why, str)
    assert "brokers 2 do not answer" in why
    lower = held(state(0, 5, 0, 1, min_isr=1), led=True)
    assert isinstance(rebuilt(ASSIGNED, 2, None, answers(b0=lower, b1=lower)), str), "min_isr was lower then"


def test_a_minority_is_never_enough_without_the_memory_of_this_term() -> None:
    alone = answers(b0=held(state(0, 5, 0, 1, min_isr=3), led=True))
    assert isinstance(rebuilt(ASSIGNED, 3, None, alone), str)
    known = VersionedState(state(0, 5, 0, 1, 2), 2), LeaderEpoch(5)
    assert rebuilt(ASSIGNED, 3, known, alone) == state(NO_LEADER, 5 + EPOCHS_ABOVE, 0, 1, min_isr=3)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answers(), "no live replica knows the state"),
        (answers(b1=held(state(0, 5, 0, 1)), b2=held(state(0, 5, 0, 1))), "broker 0 of leader epoch 5, is down"),
        (
            answers(b0=held(state(0, 5, 0, 1), led=True), b1=held(state(1, 6, 1)), b2=held(state(1, 6, 1))),
            "broker 1 of leader epoch 6, is down",
        ),
        (
            answers(b0=held(state(NO_LEADER, 6, elr=(0,)), led=False), b1=held(state(NO_LEADER, 6, elr=(1,)))),
            "different states of leader epoch 6",
        ),
    ],
)
def test_without_the_newest_leader_nothing_is_proven(said: dict[BrokerId, HeldState], why: str) -> None:
    found = rebuilt(ASSIGNED, 2, None, said)
    assert isinstance(found, str)
    assert why in found


def test_a_state_without_a_leader_keeps_its_eligible_replicas() -> None:
    last = held(state(NO_LEADER, 6, elr=(0, 1)))
    found = rebuilt(ASSIGNED, 2, None, answers(b0=last, b1=last))
    assert found == state(NO_LEADER, 6 + EPOCHS_ABOVE, elr=(0, 1))


def test_a_leader_epoch_that_this_term_knows_and_no_replica_does_proves_nothing() -> None:
    leads = held(state(0, 5, 0, 1), led=True)
    known = VersionedState(state(1, 6, 1, 2), 4), LeaderEpoch(6)
    found = rebuilt(ASSIGNED, 2, known, answers(b0=leads, b1=leads, b2=leads))
    assert found == "no live replica knows of leader epoch 6"


def test_a_replica_below_the_leader_epoch_that_another_one_proved_counts_as_silent() -> None:
    """The replica may have restarted since, and have its state from the node that was set back."""
    said = answers(b0=held(state(0, 5, 0, 1), led=True), b1=held(state(0, 5, 0, 1)), b2=held(state(0, 3, 0, 1, 2)))
    assert isinstance(rebuilt(ASSIGNED, 1, None, said), LeaderAndIsr)
    why = rebuilt(ASSIGNED, 1, None, said, LeaderEpoch(5))
    assert isinstance(why, str)
    assert "brokers 2 do not answer" in why
    assert isinstance(rebuilt(ASSIGNED, 2, None, said, LeaderEpoch(5)), LeaderAndIsr)
    assert rebuilt(ASSIGNED, 2, None, said, LeaderEpoch(6)) == "no live replica knows the state"


def test_two_leaders_of_one_leader_epoch_prove_nothing() -> None:
    """A controller that believed the older node has begun the epoch again."""
    said = answers(b0=held(state(0, 5, 0), led=True), b1=held(state(1, 5, 1, 2), led=True), b2=held(state(1, 5, 1, 2)))
    assert rebuilt(ASSIGNED, 2, None, said) == "the replicas know different leaders of leader epoch 5"


def test_an_election_of_unknown_outcome_takes_the_memory_of_this_term_away() -> None:
    alone = answers(b0=held(state(0, 5, 0, 1), led=True))
    known = VersionedState(state(0, 5, 0, 1, 2), 2), LeaderEpoch(6)
    assert isinstance(rebuilt(ASSIGNED, 2, known, alone), str)


def test_one_damaging_write_over_the_version_that_this_term_knows_replaced_that_content() -> None:
    last = state(0, 5, 0, 1)
    known = VersionedState(last, 7), LeaderEpoch(5)
    assert overwritten(known, 8) == last
    for version in (-1, 7, 9):
        assert overwritten(known, version) is None
    assert overwritten(None, 8) is None


def test_an_untrusted_state_names_no_replica_that_may_lead() -> None:
    entries = (IsrEntry(BrokerId(0), BrokerEpoch(4)),)
    found = untrusted(ASSIGNED, 2, LeaderEpoch(9), entries)
    assert (found.leader, found.isr, found.elr, found.last_known) == (NO_LEADER, (), (), entries)
    assert found.leader_epoch == 9 + EPOCHS_ABOVE
    assert found.lineage == found.leader_epoch

# SPDX-License-Identifier: Apache-2.0
"""The checker of groups against forged histories: each anomaly is found by its name, and a good history passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark.core.groups.state import (
    Change,
    Committed,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupPartition,
    MemberState,
    OffsetKey,
)

from tests.chaos.checks.group_checker import GroupAnomaly, check_group
from tests.chaos.checks.group_history import (
    Closed,
    CommittedByHand,
    Event,
    GaveUp,
    Given,
    GroupHistory,
    Journal,
    LetGo,
    Named,
    Processed,
    Taken,
    Troubled,
    read_journal,
)


def holds(member: str, epoch: int, *partitions: int, revoking: tuple[int, ...] = ()) -> Change:
    return Change(
        CurrentAssignmentKey("g", member),
        CurrentAssignment(
            epoch,
            state=MemberState.UNREVOKED if revoking else MemberState.STABLE,
            assigned=frozenset(GroupPartition("shared", "id", one) for one in partitions),
            revoking=frozenset(GroupPartition("shared", "id", one) for one in revoking),
        ),
    )


def out(member: str) -> Change:
    return Change(CurrentAssignmentKey("g", member), None)


def commits(partition: int, offset: int) -> Change:
    return Change(OffsetKey("g", "shared", partition), Committed(offset, 0, "", "id", "", 0))


def reads(at_s: float, epoch: int, partition: int, first: int, end: int) -> list[Event]:
    return [Given(at_s, at_s, (epoch, epoch), partition, first, end), Processed(at_s + 0.01, partition, first, end)]


def good() -> GroupHistory:
    """`a` reads both partitions; `b` joins, gets partition 1, commits manually, and is killed.

    `a` gets partition 1 back.
    """
    history = GroupHistory("shared")
    history.final = {0: range(6), 1: range(6)}
    history.coordinator = [
        holds("a", 1, 0, 1),
        commits(0, 2),
        holds("a", 1, 0, revoking=(1,)),
        commits(1, 2),
        holds("a", 2, 0),
        holds("b", 2, 1),
        commits(1, 4),
        out("b"),
        holds("a", 3, 0, 1),
        commits(0, 6),
        commits(1, 6),
        out("a"),
    ]
    history.journals = {
        "a": [
            Named(0.0, "a"),
            Taken(0.1, 1, (0, 1)),
            *reads(0.2, 1, 0, 0, 2),
            *reads(0.3, 1, 1, 0, 2),
            LetGo(0.4, 1, (1,)),
            *reads(0.5, 2, 0, 2, 6),
            Taken(1.1, 3, (1,)),
            *reads(1.2, 3, 1, 4, 6),
            LetGo(1.3, 3, (0, 1)),
            Closed(1.4),
        ],
        "b": [
            Named(0.5, "b", commits_by_hand=True),
            Taken(0.6, 2, (1,)),
            *reads(0.7, 2, 1, 2, 4),
            CommittedByHand(0.8, 1, 4),
            *reads(0.9, 2, 1, 4, 5),
        ],
    }
    return history


def without(history: GroupHistory, life: str, *wanted: Event) -> None:
    history.journals[life] = [one for one in history.journals[life] if one not in wanted]


def with_more(history: GroupHistory, life: str, *more: Event) -> None:
    history.journals[life] = sorted([*history.journals[life], *more], key=lambda one: one.at_s)


def leave_unread(history: GroupHistory) -> None:
    history.final[1] = range(7)


def pass_over(history: GroupHistory) -> None:
    without(history, "a", *reads(0.5, 2, 0, 2, 6))
    with_more(history, "a", *reads(0.5, 2, 0, 3, 6))


def give_before_it_is_free(history: GroupHistory) -> None:
    history.coordinator[4], history.coordinator[5] = history.coordinator[5], history.coordinator[4]


def give_to_two_of_a_generation(history: GroupHistory) -> None:
    with_more(history, "a", *reads(0.55, 2, 1, 2, 4))
    history.coordinator[4] = holds("a", 2, 0, 1)
    history.coordinator.insert(5, holds("a", 2, 0))


def give_an_unassigned_partition(history: GroupHistory) -> None:
    with_more(history, "b", *reads(0.95, 2, 0, 2, 4))


def go_on_reading(history: GroupHistory) -> None:
    with_more(history, "a", *reads(0.75, 1, 1, 2, 4))


def begin_elsewhere(history: GroupHistory) -> None:
    without(history, "a", *reads(1.2, 3, 1, 4, 6))
    with_more(history, "a", *reads(1.2, 3, 1, 5, 6))


def repeat(history: GroupHistory) -> None:
    history.coordinator[3] = commits(1, 0)
    without(history, "b", *reads(0.7, 2, 1, 2, 4))
    with_more(history, "b", *reads(0.7, 2, 1, 0, 4))


def lose_a_commit(history: GroupHistory) -> None:
    with_more(history, "b", CommittedByHand(0.95, 1, 5))


def take_a_commit_back(history: GroupHistory) -> None:
    history.coordinator.insert(7, commits(1, 2))


def commit_beyond(history: GroupHistory) -> None:
    history.coordinator.insert(10, commits(0, 8))


def commit_for_an_evicted_member(history: GroupHistory) -> None:
    """`b` had processed one more record when it was evicted."""
    history.coordinator.insert(8, commits(1, 5))
    without(history, "a", *reads(1.2, 3, 1, 4, 6))
    with_more(history, "a", *reads(1.2, 3, 1, 5, 6))


def let_a_former_reader_commit(history: GroupHistory) -> None:
    without(history, "a", *reads(0.3, 1, 1, 0, 2))
    with_more(history, "a", *reads(0.3, 1, 1, 0, 2), *reads(0.31, 1, 1, 2, 3))
    with_more(history, "a", Troubled(0.45, "group g: processed records are not committed"))
    history.coordinator.insert(6, commits(1, 3))


def tell_nothing(history: GroupHistory) -> None:
    without(history, "a", LetGo(0.4, 1, (1,)))


def give_up(history: GroupHistory) -> None:
    with_more(history, "b", GaveUp(0.95, "UNKNOWN_TOPIC"))


FORGED: dict[Callable[[GroupHistory], None], GroupAnomaly] = {
    leave_unread: GroupAnomaly.UNREAD,
    pass_over: GroupAnomaly.UNREAD,
    give_before_it_is_free: GroupAnomaly.TWO_HOLDERS,
    give_to_two_of_a_generation: GroupAnomaly.TWO_IN_A_GENERATION,
    give_an_unassigned_partition: GroupAnomaly.NOT_ASSIGNED,
    go_on_reading: GroupAnomaly.READ_BY_TWO,
    begin_elsewhere: GroupAnomaly.BEGAN_ELSEWHERE,
    repeat: GroupAnomaly.REPEATED,
    lose_a_commit: GroupAnomaly.COMMIT_LOST,
    take_a_commit_back: GroupAnomaly.COMMIT_WENT_BACK,
    commit_beyond: GroupAnomaly.COMMIT_BEYOND,
    commit_for_an_evicted_member: GroupAnomaly.COMMIT_FOREIGN,
    let_a_former_reader_commit: GroupAnomaly.COMMIT_FOREIGN,
    tell_nothing: GroupAnomaly.NEVER_TOLD,
    give_up: GroupAnomaly.GAVE_UP,
}
ALSO: dict[Callable[[GroupHistory], None], set[GroupAnomaly]] = {
    give_to_two_of_a_generation: {GroupAnomaly.READ_BY_TWO, GroupAnomaly.REPEATED},
    go_on_reading: {GroupAnomaly.REPEATED},
    lose_a_commit: {GroupAnomaly.REPEATED},
    take_a_commit_back: {GroupAnomaly.BEGAN_ELSEWHERE, GroupAnomaly.REPEATED},
    commit_beyond: {GroupAnomaly.COMMIT_WENT_BACK},
    begin_elsewhere: {GroupAnomaly.UNREAD},
}
"""The other findings of the same history."""


def test_a_good_history_passes() -> None:
    assert check_group(good()) == []


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_forged_history_is_detected(forge: Callable[[GroupHistory], None]) -> None:
    history = good()
    forge(history)
    found = {finding.anomaly for finding in check_group(history)}
    assert FORGED[forge] in found
    assert found <= {FORGED[forge]} | ALSO.get(forge, set())


def test_every_anomaly_has_a_forged_history() -> None:
    assert set(FORGED.values()) == set(GroupAnomaly)


def test_uncommitted_records_of_a_killed_member_are_read_again() -> None:
    history = good()
    without(history, "a", LetGo(0.4, 1, (1,)), Taken(1.1, 3, (1,)), *reads(1.2, 3, 1, 4, 6), LetGo(1.3, 3, (0, 1)))
    without(history, "a", Closed(1.4), *reads(0.5, 2, 0, 2, 6))
    with_more(history, "b", *reads(0.95, 2, 1, 5, 6), Taken(2.0, 3, (0,)), *reads(2.1, 3, 0, 2, 6))
    history.coordinator[7:] = [out("a"), holds("b", 3, 0, 1)]
    history.coordinator[2:5] = [out("a")]
    history.coordinator[2:2] = [commits(1, 2)]
    assert check_group(history) == []


def test_a_suspended_member_may_report_an_assignment_of_an_earlier_epoch() -> None:
    history = good()
    stale: list[Event] = [Taken(1.15, 2, (1,)), Troubled(1.16, "UNKNOWN_MEMBER"), LetGo(1.17, 0, (1,), True)]
    history.journals["c"] = [Named(0.1, "c", "", False), *stale, Closed(1.18)]
    assert check_group(history) == []


def test_records_of_a_failed_commit_are_read_again() -> None:
    history = good()
    repeat(history)
    with_more(history, "a", Troubled(0.45, "group g: processed records are not committed"))
    history.coordinator[3] = commits(1, 0)
    assert check_group(history) == []


def test_a_static_member_that_comes_back_is_the_same_reader() -> None:
    history = good()
    history.journals["a"] = [Named(0.0, "a", "i"), *history.journals["a"][1:]]
    history.journals["c"] = [Named(2.0, "c", "i"), Taken(2.1, 3, (0, 1)), *reads(2.2, 3, 0, 6, 7)]
    history.final[0] = range(7)
    history.coordinator += [holds("c", 3, 0, 1), commits(0, 7)]
    assert check_group(history) == []


def test_a_line_that_a_kill_cut_short_is_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add(Taken, 1, (0, 2), at_s=0.5)
    journal.close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'["Given", 0.6, 0.')
    assert read_journal(tmp_path / "journal") == [Taken(0.5, 1, (0, 2))]


def test_a_member_killed_right_after_a_revocation_may_not_have_committed() -> None:
    history = good()
    repeat(history)
    history.journals["a"] = [one for one in history.journals["a"] if one.at_s < 0.5]
    assert GroupAnomaly.REPEATED not in {finding.anomaly for finding in check_group(history)}

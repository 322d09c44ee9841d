# SPDX-License-Identifier: Apache-2.0
"""Every state of small scopes is right, and the explorer finds each defect that a mutant puts in."""

from __future__ import annotations

import pytest

from tests.exploration.__main__ import main, summary
from tests.exploration.known import Known
from tests.exploration.model.state import Scope
from tests.exploration.mutants import MUTANTS, Mutant
from tests.exploration.outline import SECONDS_MAX, Outline, outlines, walked
from tests.exploration.stages import stages
from tests.exploration.story import tell
from tests.exploration.walking.search import Search
from tests.exploration.walking.walk import Walk


def outlines_of_right_states(known: Known, scope: Scope) -> set[Outline]:
    """Walk a scope to its end; no state breaks an invariant."""
    walk = known.walk(scope, parents=True)
    report, seen = outlines(walk)
    assert report.violation is None, "\n".join(tell(walk.cluster, report.story))
    assert report.complete, summary(report)
    assert report.at_rest > 0, "some story ends with all replicas in sync"
    return seen


@pytest.mark.parametrize(
    "scope",
    [Scope(batches=1, lags=1, lost_answers=1), Scope(batches=1, lags=1, slow_disks=True)],
    ids=["a lost answer", "slow disks"],
)
def test_every_state_of_a_small_scope_is_right(scope: Scope, known: Known) -> None:
    assert outlines_of_right_states(known, scope)


def test_every_state_with_a_crash_is_right_and_eager_steps_hide_none(known: Known) -> None:
    """Late instead of eager steps reach no other combinations of logs, high watermarks, leaders and node."""
    eager, patient = (
        outlines_of_right_states(known, Scope(batches=1, crashes=1, reduced=reduced)) for reduced in (True, False)
    )
    assert eager == patient


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.__name__)
def test_a_mutant_is_caught_and_its_story_printed(
    mutant: Mutant, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.patch(monkeypatch)
    walk = known.walk(mutant.scope, parents=True)
    report = walk.run(seconds=SECONDS_MAX)
    assert report.violation is not None, summary(report)
    assert report.violation.startswith(mutant.guarantee)
    lines = list(tell(walk.cluster, report.story))
    assert "a client sends the next batch" in "\n".join(lines)


def test_a_walk_without_parents_reconstructs_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk is repeated with parents; the story is as short as the one of a search state by state."""
    mutant = next(one for one in MUTANTS if one.patch.__name__ == "change_in_flight_does_not_hold")
    mutant.patch(monkeypatch)
    walked, searched = Walk(mutant.scope).run(), Search(mutant.scope).run()
    assert walked.violation is not None
    assert searched.violation is not None
    assert len(walked.story) == len(searched.story)


@pytest.mark.parametrize(
    "scope",
    [
        Scope(batches=0, suspicions=1),
        Scope(batches=0, crashes=1, lost_answers=1),
        Scope(batches=0, expiries=1, reduced=False),
        Scope(batches=1, lags=1, breaks=1),
        Scope(batches=1, lags=1, acks=1, slow_disks=True),
    ],
    ids=["a suspicion", "a crash and a lost answer", "an expired session", "a broken stream", "slow disks"],
)
def test_a_walk_in_rows_sees_the_states_of_a_search_state_by_state(scope: Scope, known: Known) -> None:
    """Both searches find the same number of states, moves and ends, at the same depths, and the same combinations."""
    in_rows, by_walk = walked(known.walk(scope, thrifty=False))
    searched, by_search = walked(known.search(scope))
    for name in ("states", "transitions", "known", "at_rest", "depth", "complete", "violation"):
        assert getattr(in_rows, name) == getattr(searched, name), name
    assert by_walk == by_search


def test_states_in_which_less_may_happen_than_in_one_that_was_met_show_nothing_new(known: Known) -> None:
    scope = Scope(batches=1, lags=1, lost_answers=1)
    few, few_seen = walked(known.walk(scope))
    many, many_seen = walked(known.walk(scope, thrifty=False))
    assert few_seen == many_seen
    assert few.states < many.states


def test_a_twin_has_the_same_future(known: Known) -> None:
    """Merging by names loses nothing: a state and its twin have the same moves."""
    search = known.search(Scope(batches=1, lags=1))
    cluster, names = search.cluster, search.names
    state = cluster.initial()
    for _ in range(12):
        twin = names.canonical(state)
        ahead = [chain[-1][1] for chain in cluster.ahead(state)]
        twins = [chain[-1][1] for chain in cluster.ahead(twin)]
        assert sorted(hash(names.canonical(one)) for one in ahead) == sorted(
            hash(names.canonical(one)) for one in twins
        )
        if not ahead:
            break
        state = ahead[len(ahead) // 2]


def test_a_search_that_reaches_its_bound_reports_this(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "1", "--crashes", "1", "--minutes", "0"]) == 0
    assert "STOPPED at the bound" in capsys.readouterr().out


def test_a_beam_reports_that_states_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "2", "--beam", "3"]) == 0
    assert "SAMPLED to the end" in capsys.readouterr().out


def test_a_walk_beyond_the_memory_bound_reports_this(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "2", "--memory-gb", "0.000001"]) == 0
    assert "STOPPED at the bound" in capsys.readouterr().out


def test_every_stage_of_make_explore_names_a_scope(capsys: pytest.CaptureFixture[str]) -> None:
    for stage in stages(0):
        assert main(stage.split()) == 0
    said = capsys.readouterr().out
    assert said.count("STOPPED") + said.count("SAMPLED") == len(stages(0))

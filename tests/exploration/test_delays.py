"""Stories in which few deliveries are put off: the same states when enough may be, more of them with each that may."""

from __future__ import annotations

import pytest

from tests.exploration.__main__ import main, summary
from tests.exploration.mutants import MUTANTS, Mutant
from tests.exploration.outline import outline
from tests.exploration.search import Report
from tests.exploration.state import Scope
from tests.exploration.walk import Walk

SECONDS_MAX = 300.0
ENOUGH = 40
"""More deliveries than any story of these scopes puts off."""


def walked(
    scope: Scope, delays: int | None, *, thrifty: bool = True
) -> tuple[Report, list[Report], set[tuple[object, ...]]]:
    """The report, those that were given along the way, and the constellations that were come to."""
    walk = Walk(scope, delays=delays, thrifty=thrifty)
    seen: set[tuple[object, ...]] = set()
    along: list[Report] = []
    report = walk.run(
        seconds=SECONDS_MAX,
        visit=lambda state: seen.add(outline(walk.cluster, state)),
        done=lambda report: along.append(Report(**vars(report))),
    )
    assert report.complete, summary(report, delays)
    return report, along, seen


@pytest.mark.parametrize(
    "scope",
    [Scope(batches=0, suspicions=1), Scope(batches=0, crashes=1, lost_answers=1), Scope(batches=1, lags=1, breaks=1)],
    ids=["a suspicion", "a crash and a lost answer", "a broken stream"],
)
def test_when_enough_deliveries_may_be_put_off_every_state_is_walked(scope: Scope) -> None:
    all_of_them, _, all_seen = walked(scope, None, thrifty=False)
    bounded, along, seen = walked(scope, ENOUGH, thrifty=False)
    assert seen == all_seen
    for name in ("states", "transitions", "at_rest"):
        assert getattr(bounded, name) == getattr(all_of_them, name), name
    states = [one.states for one in along]
    assert states == sorted(states)
    assert states[0] < states[1] < states[2] < states[-1]
    assert states[-1] == states[-2], "at last there is nothing more to put off"
    assert [one.put_off for one in along] == list(range(ENOUGH + 1))


def test_whatever_comes_of_few_deliveries_put_off_comes_of_more() -> None:
    scope = Scope(batches=1, crashes=1)
    seen = [walked(scope, delays)[2] for delays in (0, 1, 2)]
    assert seen[0] < seen[1] < seen[2]


def test_each_count_of_deliveries_that_is_walked_to_its_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "0", "--suspicions", "0", "--lost-answers", "0", "--crashes", "1", "--delays", "1"]) == 0
    said = capsys.readouterr().out
    assert said.index("COMPLETE with at most 0 deliveries put off") < said.index("COMPLETE with at most 1 delivery")
    assert "no violation with at most 1 delivery put off" in said


def test_a_walk_that_stops_says_how_many_deliveries_were_put_off_in_all_that_it_saw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--delays", "1", "--minutes", "0"]) == 0
    assert "STOPPED at the bound: walked is not all" in capsys.readouterr().out


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.__name__)
def test_a_mutant_is_found_without_anything_put_off(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Misfortunes come at any moment of the one order that is left."""
    mutant.patch(monkeypatch)
    walk = Walk(mutant.scope, parents=True, delays=0)
    report = walk.run(seconds=SECONDS_MAX)
    assert report.violation is not None, summary(report, 0)
    assert report.violation.startswith(mutant.guarantee)
    assert report.story

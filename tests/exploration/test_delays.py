# SPDX-License-Identifier: Apache-2.0
"""Stories with few deferred deliveries: each further one adds states, and enough of them reach all states."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.exploration.__main__ import main, summary
from tests.exploration.known import Known
from tests.exploration.model.state import Scope
from tests.exploration.mutants import MUTANTS, Mutant
from tests.exploration.outline import SECONDS_MAX, walked
from tests.exploration.walking.walk import Walk

ENOUGH = 40
"""More deliveries than any story of these scopes defers."""


@pytest.mark.parametrize(
    "scope",
    [Scope(batches=0, suspicions=1), Scope(batches=0, crashes=1, lost_answers=1), Scope(batches=1, lags=1)],
    ids=["a suspicion", "a crash and a lost answer", "a lag"],
)
def test_when_enough_deliveries_may_be_put_off_every_state_is_walked(scope: Scope, known: Known) -> None:
    all_of_them, all_seen = walked(known.walk(scope, thrifty=False))
    for surprises_count in (False, True):
        walk = known.walk(scope, delays=ENOUGH, thrifty=False, surprises_count=surprises_count)
        bounded, seen = walked(walk)
        assert seen == all_seen
        for name in ("states", "transitions", "at_rest"):
            assert getattr(bounded, name) == getattr(all_of_them, name), name


@pytest.mark.parametrize("surprises_count", [False, True])
def test_states_with_few_delays_are_reached_with_more_delays(surprises_count: bool, known: Known) -> None:
    scope = Scope(batches=0, crashes=1)
    found = [walked(known.walk(scope, delays=delays, surprises_count=surprises_count)) for delays in range(4)]
    for (few, few_seen), (more, more_seen) in pairwise(found):
        assert few.states < more.states
        assert few_seen <= more_seen
    assert found[0][0].at_rest > 0


def test_events_only_while_no_message_travels_reach_fewer_states(known: Known) -> None:
    scope = Scope(batches=1, lags=1)
    (few, few_seen), (more, more_seen) = (
        walked(known.walk(scope, delays=0, surprises_count=counts)) for counts in (True, False)
    )
    assert few.states < more.states
    assert few_seen < more_seen


def test_a_walk_after_another_finds_the_same_as_alone(known: Known) -> None:
    scope = Scope(batches=1, lags=1, lost_answers=1)
    before = Walk(scope, delays=0)
    assert before.run().complete
    after, alone = Walk(scope, delays=1, after=before).run(), Walk(scope, delays=1, cluster=known.cluster(scope)).run()
    assert (after.states, after.transitions, after.at_rest) == (alone.states, alone.transitions, alone.at_rest)


def test_the_report_names_each_number_of_delays_walked_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "0", "--suspicions", "0", "--lost-answers", "0", "--crashes", "1", "--delays", "1"]) == 0
    said = capsys.readouterr().out
    assert said.index("COMPLETE with at most 0 deliveries put off") < said.index("COMPLETE with at most 1 delivery")


def test_a_stopped_walk_reports_its_number_of_delayed_deliveries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--delays", "1", "--minutes", "0"]) == 0
    assert "STOPPED before the end of 0 deliveries put off" in capsys.readouterr().out


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.__name__)
def test_a_mutant_is_found_with_few_deliveries_put_off(
    mutant: Mutant, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults come at any moment, although only one order of the other moves is left."""
    mutant.patch(monkeypatch)
    walk = known.walk(mutant.scope, parents=True, delays=2)
    report = walk.run(seconds=SECONDS_MAX)
    assert report.violation is not None, summary(report)
    assert report.violation.startswith(mutant.guarantee)
    assert report.story

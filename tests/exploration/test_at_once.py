# SPDX-License-Identifier: Apache-2.0
"""Stories without message delays: the walk reaches exactly their states, and all of them are states of other walks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exploration.__main__ import main, summary
from tests.exploration.known import Known
from tests.exploration.model.cluster import Cluster
from tests.exploration.model.state import ALL_BROKERS, NOW, PAIRS, Scope, State
from tests.exploration.model.turn import Move
from tests.exploration.mutants import MUTANTS, Mutant
from tests.exploration.outline import SECONDS_MAX, walked
from tests.exploration.walking.at_once import KINDS
from tests.simulation.mutants.catalogue import change_in_flight_does_not_hold, never_truncates


class Hearing(Cluster):
    """A cluster in which no other move happens while a message is in flight on a stream."""

    at_once = "streams"

    def moves(self, state: State) -> Iterator[Move]:
        heard = [] if state.due == NOW else list(self._heard(state))
        yield from heard or super().moves(state)

    def _heard(self, state: State) -> Iterator[Move]:
        for pair in range(len(PAIRS)):
            yield from self.of_leader_end(state, pair)
            yield from (move for move in self.of_follower_end(state, pair) if move[0] == "down")


class Obeying(Hearing):
    """A cluster in which also no other move happens while a command of the controller is in flight."""

    at_once = "commands"

    def _heard(self, state: State) -> Iterator[Move]:
        yield from super()._heard(state)
        for place in ALL_BROKERS:
            yield from self.of_command(state, place)


class Answered(Obeying):
    """A cluster in which also no other move happens while a request to ZooKeeper, or its answer, is in flight."""

    at_once = "zookeeper"

    def _heard(self, state: State) -> Iterator[Move]:
        yield from super()._heard(state)
        for place in ALL_BROKERS:
            yield from self.of_coordination(state, place)


@pytest.mark.parametrize("cluster", [Hearing, Obeying, Answered], ids=KINDS)
@pytest.mark.parametrize(
    "scope",
    [
        Scope(batches=1, crashes=1),
        Scope(batches=0, suspicions=1),
        Scope(batches=1, breaks=1, lags=1),
        Scope(batches=1, lags=1, lost_answers=1),
    ],
    ids=["a crash", "a suspicion", "a lag and a broken stream", "a lag and a lost answer"],
)
def test_a_walk_at_once_finds_the_states_of_a_search_with_all_deliveries_first(
    scope: Scope, cluster: type[Hearing], known: Known
) -> None:
    expected, searched = walked(known.search(scope, cluster))
    report, seen = walked(known.walk(scope, thrifty=False, at_once=cluster.at_once))
    assert seen == searched
    for name in ("states", "transitions", "at_rest", "depth", "complete"):
        assert getattr(report, name) == getattr(expected, name), name


def test_the_walk_reaches_only_constellations_of_the_full_walk(known: Known) -> None:
    scope = Scope(batches=1, lags=1, lost_answers=1)
    _, every = walked(known.walk(scope))
    for kind in KINDS:
        assert walked(known.walk(scope, at_once=kind))[1] < every, kind


NEEDS_DELAY = {
    "streams": (never_truncates,),
    "commands": (never_truncates,),
    "zookeeper": (never_truncates, change_in_flight_does_not_hold),
}
"""Mutants that these walks cannot show.

Their logs differ only while a message stays in flight, or a broker that does not wait for ZooKeeper shows itself before
the answer.
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.__name__)
def test_a_mutant_is_found_though_messages_have_no_delay(
    mutant: Mutant, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.patch(monkeypatch)
    for at_once in KINDS:
        report = known.walk(mutant.scope, parents=True, at_once=at_once).run(seconds=SECONDS_MAX)
        if mutant.patch in NEEDS_DELAY[at_once]:
            assert report.complete, (at_once, summary(report))
            continue
        assert report.violation is not None, (at_once, summary(report))
        assert report.violation.startswith(mutant.guarantee)
        assert report.story


def test_the_report_counts_the_walked_states(capsys: pytest.CaptureFixture[str]) -> None:
    only_a_batch = ["--batches", "1", "--crashes", "0", "--suspicions", "0", "--lost-answers", "0"]
    for kind, named in (("streams", "streams at once"), ("zookeeper", "streams, commands and requests at once")):
        assert main([*only_a_batch, "--at-once", kind]) == 0
        assert f"COMPLETE with {named}" in capsys.readouterr().out


def test_a_walk_at_once_is_not_combined_with_a_limit_of_delays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--at-once", "streams", "--delays", "1"])
    assert "neither --delays nor --beam" in capsys.readouterr().err

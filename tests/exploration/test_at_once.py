"""Stories in which messages have no delay: no other states than those, none that other walks do not come to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exploration import search
from tests.exploration.__main__ import main, summary
from tests.exploration.at_once import MESSAGES, STREAMS
from tests.exploration.cluster import Cluster
from tests.exploration.mutants import MUTANTS, Mutant, never_truncates
from tests.exploration.outline import outline
from tests.exploration.search import Search
from tests.exploration.state import EVERYBODY, NOW, PAIRS, Scope, State
from tests.exploration.turn import Move
from tests.exploration.walk import Walk

SECONDS_MAX = 300.0


class Hearing(Cluster):
    """A cluster in which nothing else happens while there is something to hear on streams."""

    kinds: tuple[str, ...] = STREAMS

    def moves(self, state: State) -> Iterator[Move]:
        heard = [] if state.due == NOW else list(self._heard(state))
        yield from heard or super().moves(state)

    def _heard(self, state: State) -> Iterator[Move]:
        for pair in range(len(PAIRS)):
            yield from self.of_leader_end(state, pair)
            yield from (move for move in self.of_follower_end(state, pair) if move[0] == "down")
        for place in EVERYBODY if self.kinds == MESSAGES else ():
            yield from self.of_command(state, place)


class HearingAndObeying(Hearing):
    """Nor while there is a command of the controller."""

    kinds = MESSAGES


@pytest.mark.parametrize("cluster", [Hearing, HearingAndObeying], ids=["streams", "streams and commands"])
@pytest.mark.parametrize(
    "scope",
    [Scope(batches=1, crashes=1), Scope(batches=0, suspicions=1), Scope(batches=1, breaks=1, lags=1)],
    ids=["a crash", "a suspicion", "a lag and a broken stream"],
)
def test_it_walks_what_a_search_finds_that_hears_everything_first(
    scope: Scope, cluster: type[Hearing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "Cluster", cluster)
    one_by_one = Search(scope)
    searched: set[tuple[object, ...]] = set()
    expected = one_by_one.run(visit=lambda state: searched.add(outline(one_by_one.cluster, state)))
    assert expected.complete
    walk = Walk(scope, thrifty=False, at_once=cluster.kinds)
    walked: set[tuple[object, ...]] = set()
    report = walk.run(seconds=SECONDS_MAX, visit=lambda state: walked.add(outline(walk.cluster, state)))
    assert walked == searched
    for name in ("states", "transitions", "at_rest", "depth", "complete"):
        assert getattr(report, name) == getattr(expected, name), name


def constellations(scope: Scope, at_once: tuple[str, ...]) -> set[tuple[object, ...]]:
    walk = Walk(scope, at_once=at_once)
    seen: set[tuple[object, ...]] = set()
    report = walk.run(seconds=SECONDS_MAX, visit=lambda state: seen.add(outline(walk.cluster, state)))
    assert report.complete, summary(report)
    return seen


def test_it_comes_to_no_constellation_that_the_walk_of_all_stories_does_not() -> None:
    scope = Scope(batches=1, suspicions=1)
    every, without_streams, without_messages = (constellations(scope, kinds) for kinds in ((), STREAMS, MESSAGES))
    assert without_streams < every
    assert without_messages < every
    assert without_messages - without_streams, "a command may come before what is on a stream, where neither waits"


@pytest.mark.parametrize("at_once", [STREAMS, MESSAGES], ids=["streams", "streams and commands"])
@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if mutant.patch is not never_truncates],
    ids=lambda mutant: mutant.patch.__name__,
)
def test_a_mutant_is_found_though_messages_have_no_delay(
    mutant: Mutant, at_once: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who never truncates is not: logs that differ need a message that stays on its way."""
    mutant.patch(monkeypatch)
    report = Walk(mutant.scope, parents=True, at_once=at_once).run(seconds=SECONDS_MAX)
    assert report.violation is not None, summary(report)
    assert report.violation.startswith(mutant.guarantee)
    assert report.story


def test_what_was_walked_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    only_a_batch = ["--batches", "1", "--crashes", "0", "--suspicions", "0", "--lost-answers", "0"]
    assert main([*only_a_batch, "--streams-at-once"]) == 0
    assert "COMPLETE with streams at once" in capsys.readouterr().out
    assert main([*only_a_batch, "--streams-at-once", "--commands-at-once"]) == 0
    assert "COMPLETE with streams and commands at once" in capsys.readouterr().out


def test_it_is_not_mixed_with_walks_by_what_is_put_off(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--streams-at-once", "--delays", "1"])
    assert "neither --delays nor --beam" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--commands-at-once"])
    assert "goes with --streams-at-once" in capsys.readouterr().err

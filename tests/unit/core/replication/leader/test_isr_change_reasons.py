# SPDX-License-Identifier: Apache-2.0
"""Reasons of ISR changes, and the time since the high watermark last moved."""

from __future__ import annotations

from tidemark.core.controller.partition_counts import ELECTED
from tidemark.core.controller.partition_counts import OF_LEAVING as OF_CONTROLLER
from tidemark.core.isr_change_reasons import MEANINGS, OF_JOINING, OF_LEAVING, reasons_in
from tidemark.core.messages import FollowerMessage
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import VersionedState

from tests.unit.core.replication.stage import P, Stage, node


def reasons(effects: list[fx.Effect], kind: str) -> str:
    """Fields of the one observation of this kind."""
    found = [effect for effect in effects if isinstance(effect, fx.Observed) and effect.kind == kind]
    assert len(found) == 1, found
    return str(found[0].fields["reasons"])


def time_passes_until_a_follower_leaves(stage: Stage, **hearing: int) -> str:
    """Reasons of the ISR change. `hearing`: the log end that follower 2 reports; else no follower sends a message."""
    for _ in range(130):
        if "of_2" in hearing:
            stage.reports(2, hearing["of_2"])
        effects = stage.feed(ev.Tick(), after_ms=100)
        if any(isinstance(effect, fx.WriteIsr) for effect in effects):
            return reasons(effects, "isr_shrinking")
    raise AssertionError("no follower left the ISR")


def test_a_follower_that_reports_without_progress_is_lagging() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(acks=1)
    stage.disk_answers()
    assert time_passes_until_a_follower_leaves(stage, of_2=0) == "2:lagging"
    assert reasons(stage.feed(ev.IsrWritten(P, 2)), "isr_shrunk") == "2:lagging"


def test_a_follower_without_messages_on_its_stream_is_silent() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    assert time_passes_until_a_follower_leaves(stage) == "2:silent"


def test_a_follower_without_a_stream_is_disconnected() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.feed(ev.FollowerDisconnected(2, 12))
    assert time_passes_until_a_follower_leaves(stage) == "2:disconnected"


def test_each_of_several_has_a_reason_of_its_own() -> None:
    stage = Stage().leads((1, 2, 3))
    stage.fetches(2, 0)
    stage.write(acks=1)
    stage.disk_answers()
    said = time_passes_until_a_follower_leaves(stage, of_2=0)
    assert said == "2:lagging,3:disconnected"
    assert reasons_in(said) == ["lagging", "disconnected"]


def test_a_follower_no_longer_assigned_is_reassigned() -> None:
    stage = Stage().leads((1, 2, 3))
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    effects = stage.command(node(1, 5, (1, 2, 3)), assigned=(1, 2))
    effects += stage.feed(ev.Tick(), after_ms=100)
    assert reasons(effects, "isr_shrinking") == "3:reassigned"


def test_a_returning_follower_has_caught_up_and_an_added_one_is_reassigned() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    assert reasons(stage.feed(ev.IsrWritten(P, 2)), "isr_expanded") == "3:caught_up"
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.command(node(1, 5, (1, 2)), assigned=(1, 2, 3), adding=(3,))
    stage.fetches(3, 0)
    assert reasons(stage.feed(ev.IsrWritten(P, 2)), "isr_expanded") == "3:reassigned"


def changes(effects: list[fx.Effect]) -> list[tuple[str, str]]:
    """ISR and reasons of each observed change of the confirmed ISR."""
    found = [one.fields for one in effects if isinstance(one, fx.Observed) and one.kind == "isr_changed"]
    return [(str(one["isr"]), str(one["reasons"])) for one in found]


def test_a_written_change_is_observed_once_with_its_reason() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    time_passes_until_a_follower_leaves(stage)
    assert changes(stage.out) == [], "ZooKeeper has not confirmed the change"
    assert changes(stage.feed(ev.IsrWritten(P, 2))) == [("1", "2:silent")]
    assert changes(stage.command(node(1, 5, (1,)), version=2)) == []


def test_a_change_of_the_controller_has_the_reason_of_its_command() -> None:
    stage = Stage().leads((1, 2, 3))
    removed = stage.command(node(1, 5, (1, 2)), isr_reasons=((3, "replica_failed"),))
    assert changes(removed) == [("1,2", "3:replica_failed")]
    again = stage.command(node(1, 5, (1, 2)), version=stage.version, isr_reasons=((3, "replica_failed"),))
    assert changes(again) == []
    assert changes(stage.command(node(1, 5, (1,)))) == [("1", "2:")], "a controller that states no reason"


def test_a_new_leader_observes_the_change_that_elected_it() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1, 2)), isr_reasons=((3, "broker_failed"),))
    stage.opened(0)
    assert changes(stage.out) == [("1,2", "3:broker_failed")]
    stage = Stage().leads((1, 2))
    assert changes(stage.out) == [], "the election changed no ISR"


def test_a_change_that_was_read_after_an_unknown_outcome_has_the_reason_of_its_write() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    time_passes_until_a_follower_leaves(stage)
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    effects = stage.feed(ev.IsrRead(P, VersionedState(node(1, 5, (1,)), 2)))
    assert changes(effects) == [("1", "2:silent")]


def test_there_is_a_fixed_list_of_reasons() -> None:
    assert len({*OF_LEAVING, *OF_JOINING}) == 6
    assert {*OF_LEAVING, *OF_JOINING, *OF_CONTROLLER, ELECTED} == MEANINGS.keys()
    assert reasons_in("") == []


def test_the_high_watermark_stands_still_from_the_first_record_that_is_not_committed() -> None:
    stage = Stage().leads((1, 2), min_isr=2)
    stage.fetches(2, 0)
    stage.from_follower(2, FollowerMessage())
    stage.feed(ev.Tick(), after_ms=5_000)
    stage.write(acks=1)
    stage.disk_answers()
    log = stage.core._replicas[P].log
    assert log is not None
    began = log.uncommitted_since_ms
    assert began == stage.now
    stage.feed(ev.Tick(), after_ms=300)
    stage.write(acks=1)
    stage.disk_answers()
    assert log.uncommitted_since_ms == began, "a second record changes nothing"
    stage.reports(2, 1)
    assert log.uncommitted_since_ms == stage.now, "the high watermark has moved, though not to the log end"

# SPDX-License-Identifier: Apache-2.0
"""Unstable brokers stay suspected for a hold; too many suspected brokers at the same time are ignored (rule C6)."""

from __future__ import annotations

import pytest
from tidemark.core.controller.failure_detector import FailureDetector
from tidemark.model import BrokerEpoch, BrokerId

SESSION_MS = 6_000
B, FIRST, NEXT = BrokerId(7), BrokerEpoch(1), BrokerEpoch(2)


def suspicions(*, elected_ms: int = 0) -> FailureDetector:
    return FailureDetector(session_timeout_ms=SESSION_MS, elected_ms=elected_ms)


def held_ms(suspected: FailureDetector, now_ms: int) -> int:
    """The broker answers again from now on; returns how long it stays suspected nevertheless."""
    for hold_ms in range(0, 20_001, 100):
        suspected.trust(B, FIRST, now_ms + hold_ms)
        suspected.on_time(now_ms + hold_ms)
        if not suspected.suspected(now_ms + hold_ms):
            return hold_ms
    pytest.fail("the broker stays suspected")


def test_the_detector_reports_a_suspected_broker_once() -> None:
    suspected = suspicions()
    assert suspected.suspect(B, FIRST, 100)
    assert not suspected.suspect(B, FIRST, 200)
    assert suspected.suspected(200) == {B}


def test_the_hold_of_a_broker_is_first_zero_and_doubles_with_each_relapse_up_to_a_bound() -> None:
    suspected, now_ms, held = suspicions(), 0, []
    for _ in range(8):
        suspected.suspect(B, FIRST, now_ms)
        held.append(held_ms(suspected, now_ms + 10))
        now_ms += 7_000 if held[-1] == 0 else held[-1] + 20
    assert held == [0, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]


def test_a_relapse_is_forgotten_after_a_minute() -> None:
    suspected = suspicions()
    for now_ms in (0, 1_000):
        suspected.suspect(B, FIRST, now_ms)
        held_ms(suspected, now_ms)
    suspected.suspect(B, FIRST, 59_999)
    assert held_ms(suspected, 59_999) == 1_000
    suspected.suspect(B, FIRST, 60_999)
    assert held_ms(suspected, 60_999) == 1_000, "the failures at 1 s and 60 s count"
    suspected.suspect(B, FIRST, 200_000)
    assert held_ms(suspected, 200_000) == 0


def test_a_failure_during_a_hold_restarts_the_hold() -> None:
    suspected = suspicions()
    suspected.suspect(B, FIRST, 0)
    held_ms(suspected, 0)
    suspected.suspect(B, FIRST, 1_000)
    suspected.trust(B, FIRST, 1_100)
    assert not suspected.suspect(B, FIRST, 1_300), "no change"
    suspected.on_time(1_700)
    assert suspected.suspected(1_700) == {B}
    assert held_ms(suspected, 1_800) == 500


def test_a_broker_is_suspected_in_one_registration_only() -> None:
    suspected = suspicions()
    suspected.suspect(B, FIRST, 0)
    suspected.trust(B, NEXT, 100)
    suspected.on_time(100)
    assert suspected.suspected(100) == {B}, "another one has answered"
    assert suspected.suspect(B, NEXT, 200), "for this registration it is a change"
    suspected.trust(B, NEXT, 300)
    suspected.on_time(300)
    assert not suspected.suspected(300), "which has never relapsed"
    suspected.suspect(B, NEXT, 400)
    suspected.forget(B)
    assert not suspected.suspected(400)


def test_trusting_an_unsuspected_broker_changes_nothing() -> None:
    suspected = suspicions()
    suspected.trust(B, FIRST, 0)
    suspected.suspect(B, FIRST, 100)
    suspected.on_time(5_000)
    assert suspected.suspected(5_000) == {B}


def suspect_many(suspected: FailureDetector, count: int, *, from_ms: int = 20_000, apart_ms: int = 0) -> int:
    for broker in range(count):
        suspected.suspect(BrokerId(broker), FIRST, from_ms + broker * apart_ms)
    return from_ms + (count - 1) * apart_ms


@pytest.mark.parametrize(
    ("count", "live", "too_many"), [(1, 1, False), (1, 2, False), (2, 6, False), (2, 5, True), (3, 9, False)]
)
def test_more_than_one_and_more_than_a_third_at_once_are_ignored(count: int, live: int, too_many: bool) -> None:
    suspected = suspicions()
    now_ms = suspect_many(suspected, count)
    assert suspected.guard(live, now_ms) == too_many
    assert len(suspected.suspected(now_ms)) == (0 if too_many else count)


def test_the_detector_ignores_too_many_suspected_brokers_for_one_session_timeout() -> None:
    suspected = suspicions()
    now_ms = suspect_many(suspected, 2)
    assert suspected.guard(3, now_ms)
    assert not suspected.guard(3, now_ms + SESSION_MS - 1)
    assert suspected.suspected(now_ms + SESSION_MS - 1) == frozenset()
    assert suspected.suspected(now_ms + SESSION_MS) == {0, 1}
    assert not suspected.guard(3, now_ms + SESSION_MS), "the brokers have been suspected for longer"


@pytest.mark.parametrize(("apart_ms", "doubted"), [(SESSION_MS - 1, True), (SESSION_MS, False)])
def test_brokers_suspected_a_session_timeout_apart_are_not_too_many(apart_ms: int, doubted: bool) -> None:
    suspected = suspicions()
    now_ms = suspect_many(suspected, 2, apart_ms=apart_ms)
    assert suspected.guard(3, now_ms) == doubted


def test_a_broker_that_answers_again_does_not_count() -> None:
    suspected = suspicions()
    now_ms = suspect_many(suspected, 2)
    suspected.trust(BrokerId(0), FIRST, now_ms)
    suspected.on_time(now_ms)
    assert not suspected.guard(3, now_ms)
    assert suspected.suspected(now_ms) == {1}


@pytest.mark.parametrize(("in_office_ms", "resigns"), [(2 * SESSION_MS, False), (2 * SESSION_MS + 1, True)])
def test_a_controller_elected_just_now_does_not_resign(in_office_ms: int, resigns: bool) -> None:
    suspected = suspicions(elected_ms=20_000 - in_office_ms)
    now_ms = suspect_many(suspected, 2)
    assert suspected.guard(3, now_ms) == resigns
    assert suspected.suspected(now_ms) == frozenset(), "too many at once: none counts as suspected"

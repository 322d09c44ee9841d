# SPDX-License-Identifier: Apache-2.0
"""A message counts from its send time, without synchronised clocks (rules K1, F2)."""

from __future__ import annotations

import pytest
from tidemark.core.replication.leader_contact import LeaderContact


def test_without_a_message_there_is_no_contact() -> None:
    assert not LeaderContact().within(1 << 40, 0)


def test_regular_messages_keep_contact_for_any_clock_of_the_leader() -> None:
    contact = LeaderContact()
    for beat in range(10):
        contact.on_message(7_000_000 + 500 * beat, 1_003 + 500 * beat)
    assert contact.within(500, 1_003 + 500 * 9 + 500)
    assert not contact.within(500, 1_003 + 500 * 9 + 501)


def test_a_message_that_waited_while_the_process_was_stopped_keeps_its_age() -> None:
    contact = LeaderContact()
    contact.on_message(100, 1_100)
    contact.on_message(600, 1_600)
    contact.on_message(1_100, 9_000)  # 6.9 s late
    assert not contact.within(1_500, 9_000)
    contact.on_message(8_500, 9_500)
    assert contact.within(1_500, 9_500)


def test_a_slightly_slow_clock_does_not_lose_contact_in_a_day() -> None:
    contact = LeaderContact()
    for beat in range(24 * 3600 * 2):
        now_ms = 500 * beat
        contact.on_message(int(now_ms * (1 - 5e-4)), now_ms)
    assert contact.within(1_500, now_ms)


@pytest.mark.parametrize("apart_ms", [0, 5_000_000, -5_000_000])
@pytest.mark.parametrize("now_ms", [0, 3_000_000_000])
def test_a_delayed_message_keeps_its_age_at_any_difference_of_the_clocks(apart_ms: int, now_ms: int) -> None:
    contact = LeaderContact()
    for _ in range(10):
        contact.on_message(now_ms - apart_ms, now_ms + 2)
        now_ms += 500
    contact.on_message(now_ms - apart_ms, now_ms + 9_002)
    now_ms += 9_002
    assert contact.within(9_100, now_ms)
    assert not contact.within(8_900, now_ms), "the leader sent the message nine seconds ago"

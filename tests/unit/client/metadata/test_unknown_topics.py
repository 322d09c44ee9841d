# SPDX-License-Identifier: Apache-2.0
"""The memory of missing names: patience once, then one request, then none."""

from __future__ import annotations

import math
import time

import pytest
from tidemark.client.metadata import unknown_topics
from tidemark.client.metadata.unknown_topics import ASK_AGAIN_S, NAMES_MAX, REMEMBERED_S, UnknownTopics
from tidemark.client.suggestions import nearest
from tidemark.errors import unknown_topic
from tidemark.model import TidemarkError, TopicPartition

PATIENCE_S = 5.0
ERROR = unknown_topic("ordes")


def test_the_first_lookup_is_patient_and_a_later_one_asks_once_until_the_name_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unknown_topics, "_created_s", -math.inf)  # other tests of this process create topics
    unknown = UnknownTopics()
    assert unknown.patience_s("ordes", PATIENCE_S, 100.0) == PATIENCE_S
    assert unknown.add("ordes", ERROR, 100.0) == []
    with pytest.raises(TidemarkError, match="no topic 'ordes'") as refused:
        unknown.patience_s("ordes", PATIENCE_S, 100.0 + ASK_AGAIN_S / 2)
    assert refused.value is not ERROR, "one raised error would collect the tracebacks of all calls"
    assert unknown.patience_s("ordes", PATIENCE_S, 100.0 + ASK_AGAIN_S) == 0
    assert unknown.patience_s("others", PATIENCE_S, 100.0) == PATIENCE_S
    assert unknown.patience_s("ordes", PATIENCE_S, 100.0 + REMEMBERED_S) == PATIENCE_S


def test_a_creation_in_this_process_makes_lookups_patient_again(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = UnknownTopics()
    where = TopicPartition("orders", 7)
    now_s = time.monotonic()
    unknown.add(where, ERROR, now_s)
    monkeypatch.setattr(unknown_topics, "_created_s", now_s - 1)
    assert unknown.patience_s(where, PATIENCE_S, now_s + ASK_AGAIN_S) == 0
    unknown_topics.note_creation()
    assert unknown.patience_s(where, PATIENCE_S, now_s) == PATIENCE_S


def test_the_oldest_name_is_forgotten_beyond_the_limit() -> None:
    unknown = UnknownTopics()
    for number in range(NAMES_MAX):
        unknown.add(f"t{number}", ERROR, 1.0)
    unknown.add("t0", ERROR, 2.0)
    assert unknown.add("one more", ERROR, 3.0) == ["t1"]
    assert (len(unknown), unknown.error("t1"), unknown.error("t0")) == (NAMES_MAX, None, ERROR)


@pytest.mark.parametrize(
    ("name", "meant"), [("ordes", "orders"), ("ORDERS", "orders"), ("payment", "payments"), ("zzz", None)]
)
def test_the_nearest_name_is_suggested_and_an_unlike_one_is_not(name: str, meant: str | None) -> None:
    assert nearest(name, ["clicks", "orders", "payments"]) == meant

# SPDX-License-Identifier: Apache-2.0
"""One rule for the names of topics: requests, reassignments and znodes agree."""

from __future__ import annotations

import pytest
from tidemark.core.topic_name import TOPIC_NAME_CHARACTERS_MAX, check_topic_name, is_topic_name
from tidemark.model import ErrorCode

from tests.refusals import raises_code


@pytest.mark.parametrize("name", ["a", "orders.v2_x-1", "...", "a" * TOPIC_NAME_CHARACTERS_MAX])
def test_a_topic_can_have_this_name(name: str) -> None:
    check_topic_name(name)
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "a\n", "a" * (TOPIC_NAME_CHARACTERS_MAX + 1)])
def test_no_topic_can_have_this_name(name: str) -> None:
    with raises_code(ErrorCode.INVALID_TOPIC_NAME):
        check_topic_name(name)
    assert not is_topic_name(name)

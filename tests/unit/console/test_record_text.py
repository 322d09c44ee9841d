# SPDX-License-Identifier: Apache-2.0
"""Bytes of records as text: JSON, text, hex, cut, without hidden characters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.console.pages.record_text import shown


def text_of(content: bytes, form: str = "auto", bytes_max: int = 4096) -> tuple[object, object]:
    found = shown(content, form, bytes_max)
    assert found is not None
    return found["form"], found["text"]


@pytest.mark.parametrize(
    ("content", "form", "expected"),
    [
        (b"plain", "auto", ("text", "plain")),
        (b"", "auto", ("text", "")),
        (b'{"a":1.10,"a":[]}', "auto", ("json", '{\n  "a": 1.10,\n  "a": []\n}')),
        (b'{"a":1}', "text", ("text", '{"a":1}')),
        (b"[1,", "json", ("text", "[1,")),
        (b"1", "json", ("text", "1")),
        (b"[" * 4000, "json", ("text", "[" * 4000)),
        (b"ab", "hex", ("hex", f"0000  {'61 62':<47}  ab")),
        (b"\xff\x00", "auto", ("hex", f"0000  {'ff 00':<47}  ..")),
        (b"a\x00", "auto", ("hex", f"0000  {'61 00':<47}  a.")),
        (b"a\x00\r\n", "text", ("text", "a\\x00\\x0d\n")),
        ("a\u202eb\U000e0001".encode(), "auto", ("text", "a\\u202eb\\U000e0001")),
    ],
)
def test_a_value_has_the_form_that_fits(content: bytes, form: str, expected: tuple[str, str]) -> None:
    assert text_of(content, form) == expected


def test_a_null_value_has_no_text() -> None:
    assert shown(None, "auto", 10) is None


def test_a_cut_value_ends_with_a_whole_character() -> None:
    found = shown("aé€é".encode(), "auto", 5)
    assert found == {"bytes": 8, "form": "text", "text": "aé", "cut": True}
    assert text_of(b"x" * 100_000, "hex")[1].count("\n") == 31  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [100, 600, 900])
def test_deeply_nested_json_takes_no_more_than_a_few_times_its_size(depth: int) -> None:
    items = b",".join([b"1"] * ((4096 - 2 * depth) // 2))
    found = text_of(b"[" * depth + items + b"]" * depth)[1]
    assert isinstance(found, str)
    assert len(found) <= 8 * 4096


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda one: st.lists(one) | st.dictionaries(st.text(max_size=6), one),
        max_leaves=20,
    )
)
def test_indented_json_has_the_same_value(value: object) -> None:
    content = json.dumps([value], ensure_ascii=True).encode()
    form, text = text_of(content, "json", 1 << 20)
    assert form == "json"
    assert isinstance(text, str)
    assert json.loads(text) == [value]


@given(st.binary(max_size=300), st.sampled_from(["auto", "text", "json", "hex"]), st.integers(1, 300))
def test_any_bytes_have_a_text_of_visible_characters(content: bytes, form: str, bytes_max: int) -> None:
    text = text_of(content, form, bytes_max)[1]
    assert isinstance(text, str)
    assert all(one.isprintable() or one in "\n\t" for one in text)

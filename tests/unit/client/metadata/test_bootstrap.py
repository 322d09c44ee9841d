# SPDX-License-Identifier: Apache-2.0
"""Addresses of brokers: a text or a list of texts; anything else is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.client.metadata.bootstrap import BOOTSTRAP_VARIABLE, parse_bootstrap
from tidemark.errors import InvalidConfigError


@pytest.mark.parametrize(
    "given",
    ["a:1,b:2", " a:1 , b:2,", ["a:1", "b:2"], ("a:1", "b:2"), ["a:1,b:2"], iter(["a:1", "b:2"])],
    ids=lambda given: type(given).__name__,
)
def test_a_text_and_a_list_of_texts_name_the_same_brokers(given: Any) -> None:
    assert parse_bootstrap(given) == ("a:1", "b:2")


def test_the_environment_names_the_brokers_of_a_client_without_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "[::1]:9192")
    assert parse_bootstrap(None) == ("[::1]:9192",)
    monkeypatch.delenv(BOOTSTRAP_VARIABLE)
    with pytest.raises(InvalidConfigError, match="no broker is named"):
        parse_bootstrap(None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("http://a:9192", "'http://a:9192' is a URL: give host:port, without the scheme"),
        ("a:9192/topics", "'a:9192/topics' is not host:port"),
        ("a b:9192", "'a b:9192' is not host:port"),
        ("a:٩١٩٢", "is not host:port"),
        (b"a:9192", "b'a:9192' is a bytes: give text"),
        ([b"a:9192"], "b'a:9192' is a bytes: give text"),
        (9192, "9192 is a int: give text"),
        ([], "no broker is named"),
        (["a:1", None], "None is a NoneType: give text"),
    ],
    ids=repr,
)
def test_another_bootstrap_is_refused_with_a_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(InvalidConfigError, match=sentence):
        parse_bootstrap(given)


def test_the_error_names_its_argument() -> None:
    with pytest.raises(InvalidConfigError, match="admin: 'here' is not host:port"):
        parse_bootstrap("here", name="admin")

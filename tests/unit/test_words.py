# SPDX-License-Identifier: Apache-2.0
"""Shipped texts use plain words: named components as subjects, and one word for one thing (docs/glossary.md)."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BANNED = {
    "nobody": "name the component: no replica, no consumer, no controller",
    "somebody": "name the component: another controller, an operator",
    "someone": "name the component: another controller, an operator",
    "anybody": "name the component",
    "everybody": "name the component: all brokers, all members",
    "whoever": "name the component: the caller, the next leader",
    "whom": "name the component",
    "who": "name the component; of a component: that, which",
    "everyone": "name the component: all brokers, all members",
    "whatever": "with any, after any, also if",
    "anew": "again, a new",
    "misfortune": "fault",
    "misfortunes": "faults",
    "farewell": "controlled shutdown, or the last request of a member",
    "befall": "inject, happen",
    "hears": "receives",
    "heir": "successor",
    "in good order": "without an error",
    "likewise": "as for, the same",
    "mend": "repair, correct",
    "under way": "in flight, running",
    "all the same": "still, even then; for equal things: equal",
    "for ever": "permanently, without end",
    "for good": "permanently",
    "half done": "partly done",
    "lately": "recently",
    "news": "change, notification",
    "now and then": "sometimes, from time to time",
    "passed over": "ignored, skipped",
    "seldom": "rarely",
    "shall": "must, or the present tense",
    "stranger": "unknown caller",
    "strangers": "unknown callers",
    "surely": "is certain to",
    "the like": "name the things",
}
FILES_MIN = 500
"""Fewer shipped files were found by mistake."""
SEED = re.compile(r"f\"near consumer, |'anew'$")
"""Worlds are drawn from this text: another one would change every pinned seed."""
TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Since Python 3.12, an f-string is several tokens."""
UNSHIPPED = ("tests", "bench")
"""Not shipped, but read by contributors: the banned words hold there, too."""
SHIPS = ("services", "spark", "docs", "charts", "deploy", "proto", "README.md", "CONTRIBUTING.md", "Makefile")
ENDINGS = {".py", ".md", ".proto", ".yaml", ".tpl", ".txt", ".sh", ".json", ""}
LISTS_THEM = {ROOT / "docs" / "glossary.md", ROOT / "CONTRIBUTING.md", Path(__file__).resolve()}
WORD = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
FOLDED_WORD = re.compile(rf"\b(?:{'|'.join(BANNED)})\b")
"""Finds the same in a folded text, in a third of the time."""
TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
VAGUE_NAME = re.compile(rf"^test_(?:it|of|those|they|neither)_|(?:_(?:who|what|told|said|{'|'.join(BANNED)}))(?:_|$)")
NAMES_WITH_THE_WORDS = {"test_no_docstring_or_comment_begins_with_who_or_what"}
NO_LONGER = "longer|more|older|newer|less|other|such"
IS_NO = re.compile(rf"(?<=[^\s])(?<!\b[Tt]here)(?<!\bthan)[ \t](?:is|are)\s+no\s+(?!(?:{NO_LONGER})\b)[a-zA-Z]")
"""A denied noun ("a text is no key"); not "there is no key"."""
INVERTED = re.compile(r'(?:^[rf]*"""|^# |[.:?] )Of [a-z]')
"""A sentence that begins with a part of its object: "Of two changes, one is made"."""
VAGUE_WORD = re.compile(r'(?:"""|#\s*(?:--\s*)?)(?:[Ww]ho|[Ww]hom|[Ww]hat)\b')
VAGUE_START = re.compile(rf"^[rf]*{VAGUE_WORD.pattern}(?!.*\?)")


def files(*names: str) -> Iterator[Path]:
    for name in names:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and path.suffix in ENDINGS and not {"__pycache__", "v1"} & set(path.parts[:-1]):
                yield path


def shipped() -> Iterator[Path]:
    yield from files(*SHIPS)
    yield from sorted((ROOT / "proto").rglob("*.proto"))


def prose(path: Path, pattern: re.Pattern[str]) -> tuple[tuple[int, str], ...]:
    """Line numbers and texts: strings and comments of Python, every line of other files; of files with the pattern."""
    whole = path.read_text(encoding="utf-8")
    if not pattern.search(whole):
        return ()
    if path.suffix != ".py":
        return tuple(enumerate(whole.splitlines(), start=1))
    with path.open("rb") as source:
        return tuple(
            (token.start[0], token.string) for token in tokenize.tokenize(source.readline) if token.type in TEXTS
        )


def test_texts_have_no_banned_word() -> None:
    paths = sorted({*shipped(), *files(*UNSHIPPED)} - LISTS_THEM)
    assert len(paths) > FILES_MIN
    found = [
        f"{path}:{line}: {word!r}: {BANNED[word.lower()]}"
        for path in paths
        if FOLDED_WORD.search(path.read_text(encoding="utf-8").casefold())
        for line, text in prose(path, WORD)
        for word in WORD.findall(text)
        if not SEED.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [(IS_NO, "is not a"), (INVERTED, "begin with the subject")],
    ids=["is no", "inverted"],
)
def test_shipped_texts_have_the_usual_order_of_words(pattern: re.Pattern[str], instead: str) -> None:
    found = [
        f"{path}:{line}: {text[:80]}: {instead}"
        for path in sorted(set(shipped()) - LISTS_THEM)
        for line, text in prose(path, pattern)
        if pattern.search(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "the name is no key",
        "the text is no\n    key",
        "the text is no JSON",
        '"""Of two changes one is made."""',
        "one. Of two, one",
    ],
)
def test_an_unusual_order_of_words_is_found(text: str) -> None:
    assert IS_NO.search(text) or INVERTED.search(text)


@pytest.mark.parametrize("text", ["there is no key", "is no longer", "there are no keys", "a list. Often it is"])
def test_a_usual_order_of_words_is_not_found(text: str) -> None:
    assert not IS_NO.search(text)
    assert not INVERTED.search(text)


def test_no_docstring_or_comment_begins_with_who_or_what() -> None:
    found = [
        f"{path}:{line}: {text[:80]}"
        for path in sorted({*files("services", "spark", *UNSHIPPED)} - LISTS_THEM)
        if path.suffix == ".py"
        for line, text in prose(path, VAGUE_WORD)
        if VAGUE_START.match(text)
    ]
    assert not found, "\n".join(found)


def test_names_of_tests_have_a_component_as_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in TEST_NAME.findall(path.read_text(encoding="utf-8"))
        if VAGUE_NAME.search(name) and name not in NAMES_WITH_THE_WORDS
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "name",
    [
        "test_it_ends",
        "test_of_two_one_wins",
        "test_what_is_gone",
        "test_a_broker_that_nobody_relieves",
        "test_a_limit_is_told",
    ],
)
def test_a_vague_name_of_a_test_is_found(name: str) -> None:
    assert VAGUE_NAME.search(name)


@pytest.mark.parametrize("text", ["# Nobody leads", '"""Whoever asks."""', "elect whom the ISR has"])
def test_the_list_finds_its_words(text: str) -> None:
    assert WORD.search(text)


@pytest.mark.parametrize("text", ['"""What a broker keeps."""', "# Who leads", "# -- what is led"])
def test_a_vague_start_is_found(text: str) -> None:
    assert VAGUE_START.match(text)

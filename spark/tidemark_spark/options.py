"""The options of format("tidemark"), named as those of Spark's Kafka source. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

EARLIEST: Final = -2
"""In startingOffsets, as in Spark's Kafka source: the first offset there is."""
LATEST: Final = -1
"""In endingOffsets: the high watermark when the query is planned."""

_KNOWN: Final = {
    name.lower(): name
    for name in (
        "tidemark.bootstrap",
        "subscribe",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "minPartitions",
        "includeHeaders",
        "failOnDataLoss",
        "deadlineMs",
    )
}

Offsets = Mapping[str, Mapping[int, int]]
"""Offset by topic and partition; EARLIEST and LATEST among them."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch read was asked for.

    Attributes:
        bootstrap: host:port[,host:port...] of brokers.
        topics: the topics, each with the partitions asked for; None: all of them.
        starting: first offset of each partition, inclusive; a partition not named starts at EARLIEST.
        ending: offset after the last of each partition; a partition not named ends at LATEST.
        min_partitions: ranges are split until there are at least so many.
        include_headers: whether there is a column of headers.
        deadline_ms: longest time without progress that a task waits for.
    """

    bootstrap: str
    topics: Mapping[str, frozenset[int] | None]
    starting: Offsets = field(default_factory=dict)
    ending: Offsets = field(default_factory=dict)
    min_partitions: int = 1
    include_headers: bool = False
    deadline_ms: int = 120_000


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Options as Spark passes them, names in any case; raises ValueError with what would be right."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _KNOWN:
            raise ValueError(f"tidemark has no option {name!r}; it has {', '.join(sorted(_KNOWN.values()))}")
    if not given.get("tidemark.bootstrap"):
        raise ValueError("option 'tidemark.bootstrap' is missing: host:port[,host:port...] of brokers")
    if given.get("failondataloss", "true").lower() != "true":
        raise ValueError("failOnDataLoss=false is not offered: a read either gives every record or fails")
    topics = _topics(given.get("subscribe"), given.get("assign"))
    starting = _offsets("startingOffsets", given.get("startingoffsets"), "earliest", EARLIEST, LATEST)
    ending = _offsets("endingOffsets", given.get("endingoffsets"), "latest", LATEST, EARLIEST)
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        unknown = sorted(set(offsets) - set(topics))
        if unknown:
            raise ValueError(f"{name} names topics that are not read: {', '.join(unknown)}")
    return ReadOptions(
        bootstrap=given["tidemark.bootstrap"],
        topics=topics,
        starting=starting,
        ending=ending,
        min_partitions=_positive("minPartitions", given.get("minpartitions", "1")),
        include_headers=_boolean("includeHeaders", given.get("includeheaders", "false")),
        deadline_ms=_positive("deadlineMs", given.get("deadlinems", "120000")),
    )


def include_headers(options: Mapping[str, str]) -> bool:
    """The one option that the schema depends on."""
    given = {name.lower(): value for name, value in options.items()}
    return _boolean("includeHeaders", given.get("includeheaders", "false"))


def _topics(subscribe: str | None, assign: str | None) -> dict[str, frozenset[int] | None]:
    if (subscribe is None) == (assign is None):
        raise ValueError("one of the options 'subscribe' (topic,topic) and 'assign' ({\"topic\": [0, 1]}) must be set")
    if subscribe is not None:
        names = [name.strip() for name in subscribe.split(",") if name.strip()]
        if not names:
            raise ValueError("option 'subscribe' names no topic")
        return dict.fromkeys(names)
    assert assign is not None
    parsed = _json("assign", assign)
    topics: dict[str, frozenset[int] | None] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_index(index) for index in partitions):
            raise ValueError(f"assign[{topic!r}] is {partitions!r}; want a list of partitions, e.g. [0, 1]")
        topics[topic] = frozenset(partitions)
    if not topics:
        raise ValueError("option 'assign' names no topic")
    return topics


def _offsets(name: str, text: str | None, word: str, special: int, refused: int) -> dict[str, dict[int, int]]:
    """Explicit offsets; {} for the word that is also the default."""
    if text is None or text.strip().lower() == word:
        return {}
    if not text.strip().startswith("{"):
        raise ValueError(f'{name} is {text!r}; a batch read takes "{word}" or JSON, e.g. {{"topic": {{"0": 23}}}}')
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(name, text).items():
        if not isinstance(partitions, dict):
            raise ValueError(f'{name}[{topic!r}] is {partitions!r}; want offsets by partition, e.g. {{"0": 23}}')
        offsets[topic] = {}
        for index, offset in partitions.items():
            right = index.isdecimal() and isinstance(offset, int) and not isinstance(offset, bool)
            if not right or offset == refused or offset < EARLIEST:
                raise ValueError(f"{name}[{topic!r}][{index!r}] is {offset!r}; want an offset, or {special} for {word}")
            offsets[topic][int(index)] = offset
    return offsets


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"option {name!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"option {name!r} is {parsed!r}; want a JSON object by topic")
    return parsed


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _positive(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"option {name!r} is {text!r}; want a whole number from 1")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"option {name!r} is {text!r}; want true or false")
    return text.strip().lower() == "true"

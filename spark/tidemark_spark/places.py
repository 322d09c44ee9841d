# SPDX-License-Identifier: Apache-2.0
"""Start and end of a read, in the options of Spark's Kafka source: words, offsets, times. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark_spark.common_options import parse_whole

EARLIEST: Final = -2
"""As in Spark's Kafka source: the log start offset."""
LATEST: Final = -1
"""The high watermark when the query, or the micro-batch, is planned."""

_TIMESTAMP_MAX_MS: Final = (2**63 - 1) // 1000
"""Brokers have microseconds in 64 bits."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Place:
    """Start or end of a read. An entry for the partition counts first, then the time for all, then the word.

    Attributes:
        name: the option, for errors.
        word: EARLIEST or LATEST, for partitions without another entry.
        offsets: offsets by topic and partition, also EARLIEST and LATEST.
        timestamp_ms: milliseconds since 1970, for the first offset at or after it in all partitions; None: not given.
        timestamps_ms: the same by topic and partition.
        young_is_latest: whether a time after all records means LATEST instead of an error.
    """

    name: str
    word: int
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    young_is_latest: bool = False

    def timestamp_of(self, topic: str, partition: int) -> int | None:
        """The time given for a partition, in milliseconds since 1970; None: not given."""
        return self.timestamps_ms.get(topic, {}).get(partition, self.timestamp_ms)

    def offset_of(self, topic: str, partition: int) -> int:
        """The place of a partition without a time: an offset, EARLIEST or LATEST."""
        return self.offsets.get(topic, {}).get(partition, self.word)

    def named(self) -> Mapping[str, Mapping[int, int]]:
        """Named partitions, by topic."""
        return self.timestamps_ms or self.offsets


def parse_place(given: Mapping[str, str], which: str, *, default: int, refused: int | None) -> Place:
    """Start or end of a read from its four options; the first given one counts, as in Spark's Kafka source.

    Args:
        given: options by lower-case name.
        which: "starting" or "ending".
        default: EARLIEST or LATEST.
        refused: the word that is not allowed here; None: both words are allowed.

    Raises:
        ValueError: names the valid form.
    """
    strategy_name = f"{which}OffsetsByTimestampStrategy"
    strategy = given.get(strategy_name.lower(), "error" if which == "starting" else "latest").strip().lower()
    if strategy not in ("error", "latest"):
        raise ValueError(f"option {strategy_name!r} is {strategy!r}; expected error or latest")
    lenient = strategy == "latest"
    name = f"{which}Timestamp"
    text = given.get(name.lower())
    if text is not None:
        time_ms = parse_whole(text)
        if time_ms is None or time_ms > _TIMESTAMP_MAX_MS:
            raise ValueError(f"option {name!r} is {text!r}; expected milliseconds since 1970, e.g. 1735689600000")
        return Place(name, default, timestamp_ms=time_ms, young_is_latest=lenient)
    name = f"{which}OffsetsByTimestamp"
    text = given.get(name.lower())
    if text is not None:
        times = _numbers(name, text, "milliseconds since 1970")
        for topic, partitions in times.items():
            for partition, time_ms in partitions.items():
                if not 0 <= time_ms <= _TIMESTAMP_MAX_MS:
                    raise ValueError(
                        f"{name}[{topic!r}]['{partition}'] is {time_ms}; expected milliseconds since 1970, from 0"
                    )
        return Place(name, default, timestamps_ms=times, young_is_latest=lenient)
    return _by_offsets(given, f"{which}Offsets", default, refused)


def _by_offsets(given: Mapping[str, str], name: str, default: int, refused: int | None) -> Place:
    text = given.get(name.lower())
    words = [word for word, special in _WORDS.items() if special != refused]
    if text is None:
        return Place(name, default)
    word = text.strip().lower()
    if word in words:
        return Place(name, _WORDS[word])
    if not text.strip().startswith("{"):
        allowed = " or ".join(f'"{word}"' for word in words)
        raise ValueError(f'{name} is {text!r}; here it takes {allowed}, or JSON, e.g. {{"topic": {{"0": 23}}}}')
    offsets = _numbers(name, text, "an offset")
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset == refused or offset < EARLIEST:
                allowed = " or ".join(f"{_WORDS[word]} for {word}" for word in words)
                raise ValueError(f"{name}[{topic!r}]['{partition}'] is {offset}; expected an offset, or {allowed}")
    return Place(name, default, offsets=offsets)


def _numbers(name: str, text: str, what: str) -> dict[str, dict[int, int]]:
    """Whole numbers by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in parse_json_object(name, text).items():
        if not isinstance(partitions, dict):
            raise ValueError(f'{name}[{topic!r}] is {partitions!r}; expected {what} by partition, e.g. {{"0": 23}}')
        found[topic] = {}
        for index, number in partitions.items():
            if parse_whole(index) is None or not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(
                    f'{name}[{topic!r}][{index!r}] is {number!r}; expected {what} by partition: {{"0": 23}}'
                )
            found[topic][int(index)] = number
    return found


def _once(name: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate names, for which JSON would silently keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [one for one, _ in pairs]
        raise ValueError(f"option {name!r} names {next(one for one in names if names.count(one) > 1)!r} twice")
    return found


def parse_json_object(name: str, text: str) -> dict[str, Any]:
    """The object that an option holds; raises ValueError that names the option."""
    try:
        parsed = json.loads(text, object_pairs_hook=lambda pairs: _once(name, pairs))
    except json.JSONDecodeError as error:
        raise ValueError(f"option {name!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"option {name!r} is {parsed!r}; expected a JSON object by topic")
    return parsed

# SPDX-License-Identifier: Apache-2.0
"""Options of reads with format("tidemark"), with the names of Spark's Kafka source. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.client.isolation_levels import ISOLATION_LEVELS
from tidemark.rpc.security.paths import TlsFiles

from tidemark_spark.columns import Columns, parse_columns
from tidemark_spark.common_options import (
    ADDRESSES,
    CLIENT_ID,
    ISOLATION_LEVEL,
    TLS_FILES,
    TOKEN_FILE,
    parse_boolean,
    parse_bootstrap,
    parse_client_id,
    parse_tls,
    parse_token_file,
    parse_whole,
    unknown_option,
)
from tidemark_spark.places import EARLIEST, LATEST, Place, parse_json_object, parse_place

__all__ = ["EARLIEST", "LATEST", "ReadOptions", "parse_options", "parse_schema_options"]

_log = logging.getLogger("tidemark.spark")

_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsetsByTimestampStrategy")
_BATCH: Final = (*_ENDING, "history")
"""Options of batch reads."""
_STREAMING: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
_OF_BYTES: Final = ("includeHeaders", "valueFormat", "valueSchema", "malformedValues")
"""Options of reads of topics without a schema."""
_OF_TYPED: Final = ("metadataColumns", "schemaChange", "schemaVersion", "history")
"""Options of reads of topics with a schema."""
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "tidemark.bootstrap",
        *TLS_FILES,
        TOKEN_FILE,
        CLIENT_ID[0],
        ISOLATION_LEVEL[0],
        "path",
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        *_ENDING,
        *_STREAMING,
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "deadlineMs",
        "rack",
        "pushDownFilters",
        "columns",
        *_OF_BYTES,
        *_OF_TYPED,
    )
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "groupidprefix",
        "kafka.group.id",
    }
)
"""Options of Spark's Kafka source without a counterpart here; accepted and ignored, so that a job may keep them."""
_KAFKA_RACK: Final = "kafka.client.rack"
_DEADLINE_MS: Final = 60_000
_NAMED_MAX: Final = 3
_GROUP_ID_MAX: Final = 249
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Durations as in Spark's Kafka source: a number without a unit is milliseconds."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read.

    Attributes:
        bootstrap: host:port[,host:port...] of brokers.
        columns: columns and format of the values.
        starting: start of the read, inclusive.
        ending: end of the read, exclusive; LATEST for a stream.
        topics: topics with their selected partitions (None: all); empty with a pattern.
        pattern: matches the whole names of topics to read, including later ones.
        min_partitions: least number of tasks, reached by splitting; None: `pack` chooses.
        max_records_per_partition: most offsets of a range, reached by splitting; None: no bound.
        fail_on_data_loss: whether deleted records end the query, or are skipped, counted and logged.
        deadline_ms: longest time without progress in the driver or a task.
        rack: tasks read from an in-sync replica in this rack, if any; "": from leaders.
        push_down_filters: whether filters of the query narrow the read (docs/spark.md has the cost).
        max_offsets: most offsets of a micro-batch, but at least one of each partition that has any; None: no bound.
        min_offsets: a micro-batch waits for this number of offsets, for at most `max_delay_ms`.
        max_delay_ms: see min_offsets.
        tls: the TLS files; None: files of the environment, or plain text.
        token_file: path of a file with a bearer token; None: the token of the environment, or no token.
        client_id: a name for quotas and metrics of brokers; "": no name.
        is_typed: whether the topic has a schema; `columns` is then empty.
        goes_on: whether a stream continues with the version of its start after a change of the schema.
        isolation_level: "read_committed" or "read_uncommitted".
        group_id: consumer group that shows the progress of a stream; "": no group.
        history: directory of an archive of the topic, for the rows that are archived; "": all rows from brokers.
    """

    bootstrap: str
    columns: Columns
    starting: Place
    ending: Place
    topics: Mapping[str, frozenset[int] | None]
    pattern: re.Pattern[str] | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    deadline_ms: int = _DEADLINE_MS
    rack: str = ""
    push_down_filters: bool = False
    max_offsets: int | None = None
    min_offsets: int = 0
    max_delay_ms: int = 900_000
    tls: TlsFiles | None = None
    token_file: str | None = None
    client_id: str = ""
    is_typed: bool = False
    goes_on: bool = False
    group_id: str = ""
    history: str = ""
    isolation_level: str = "read_committed"

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Topics to read, sorted; a pattern does not match internal topics, whose names begin with __."""
        if self.pattern is None:
            return sorted(set(names) & set(self.topics))
        pattern = self.pattern
        return sorted(name for name in names if not name.startswith("__") and pattern.fullmatch(name))

    def no_match(self, names: Iterable[str]) -> str:
        """The warning that the pattern does not match any of these names."""
        assert self.pattern is not None
        parts = sorted(name for name in names if not name.startswith("__") and self.pattern.search(name))
        hint = f", and this one matches only a part of {', '.join(parts[:_NAMED_MAX])}" if parts else ""
        return f"subscribePattern {self.pattern.pattern!r} matches no topic; it must match the whole name{hint}"


def single_topic(given: Mapping[str, str]) -> str | None:
    """The topic of a read that names only one topic, and may use its columns; None: several topics, or a read of bytes.

    Args:
        given: options by lower-case name.
    """
    if any(name.lower() in given for name in _OF_BYTES):
        return None
    try:
        topics, pattern = _topics(given)
    except ValueError:  # the reader reports the wrong option
        return None
    return next(iter(topics)) if pattern is None and len(topics) == 1 else None


def parse_options(options: Mapping[str, str], *, streaming: bool = False, typed: bool = False) -> ReadOptions:
    """Parse the options that Spark passes, with names in any case.

    Args:
        options: options of the job.
        streaming: whether the read is a stream, which starts at latest by default and has no end.
        typed: whether the topic has a schema.

    Raises:
        ValueError: for a missing, unknown or wrong option; names the valid form.
    """
    given = {name.lower(): value for name, value in options.items()}
    _check_names(given)
    misplaced = [name for name in (_BATCH if streaming else _STREAMING) if name.lower() in given]
    if misplaced:
        kind, other = ("stream", "batch reads") if streaming else ("batch read", "streams")
        raise ValueError(f"option {misplaced[0]!r} is for {other}; this is a {kind}")
    unfit = [name for name in (_OF_BYTES if typed else _OF_TYPED) if name.lower() in given]
    if unfit:
        kinds = "without a schema; this one has one" if typed else "with a schema; this one has none"
        raise ValueError(f"option {unfit[0]!r} is for topics {kinds}")
    topics, pattern = _topics(given)
    starting = parse_place(
        given, "starting", default=LATEST if streaming else EARLIEST, refused=None if streaming else LATEST
    )
    ending = parse_place(given, "ending", default=LATEST, refused=EARLIEST)
    for place in (starting, ending):
        for topic, partitions in place.named().items():
            _check_named(place, topic, partitions, topics, pattern)
    limit, least = given.get("maxoffsetspertrigger"), given.get("minoffsetspertrigger")
    least_tasks, most_a_task = given.get("minpartitions"), given.get("maxrecordsperpartition")
    parsed = ReadOptions(
        bootstrap=parse_bootstrap(given),
        columns=Columns(()) if typed else parse_columns(given),
        starting=starting,
        ending=ending,
        topics=topics,
        pattern=pattern,
        min_partitions=None if least_tasks is None else _positive("minPartitions", least_tasks),
        max_records_per_partition=None if most_a_task is None else _positive("maxRecordsPerPartition", most_a_task),
        fail_on_data_loss=parse_boolean("failOnDataLoss", given.get("failondataloss", "true")),
        deadline_ms=_positive("deadlineMs", given.get("deadlinems", str(_DEADLINE_MS))),
        rack=given.get("rack", given.get(_KAFKA_RACK, "")).strip(),
        push_down_filters=parse_boolean("pushDownFilters", given.get("pushdownfilters", "false")),
        max_offsets=None if limit is None else _positive("maxOffsetsPerTrigger", limit),
        min_offsets=0 if least is None else _positive("minOffsetsPerTrigger", least),
        max_delay_ms=_duration_ms("maxTriggerDelay", given.get("maxtriggerdelay", "15m")),
        tls=parse_tls(given),
        token_file=parse_token_file(given),
        client_id=parse_client_id(given),
        is_typed=typed,
        goes_on=_continues(given),
        group_id=_group_id(given),
        history=_history(given),
        isolation_level=_isolation_level(given),
    )
    if parsed.max_offsets is not None and parsed.min_offsets > parsed.max_offsets:
        raise ValueError(
            f"minOffsetsPerTrigger {parsed.min_offsets} is above maxOffsetsPerTrigger {parsed.max_offsets}"
        )
    return parsed


def parse_schema_options(options: Mapping[str, str]) -> Columns:
    """Options that the schema depends on; raises ValueError."""
    return parse_columns({name.lower(): value for name, value in options.items()})


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _KNOWN or name in (*ADDRESSES, *CLIENT_ID, *ISOLATION_LEVEL, _KAFKA_RACK):
            continue
        if name in _WITHOUT_EFFECT:
            _log.info("option %s of Spark's Kafka source has no effect on tidemark", name)
        else:
            raise unknown_option(name, (*_KNOWN.values(), *ADDRESSES, _KAFKA_RACK), "reads")


def _topics(given: Mapping[str, str]) -> tuple[dict[str, frozenset[int] | None], re.Pattern[str] | None]:
    found = [name for name in ("subscribe", "subscribePattern", "assign", "path") if name.lower() in given]
    if len(found) != 1:
        raise ValueError(
            "one of the options 'subscribe' (topic,topic), 'subscribePattern' (a regular expression) and 'assign' "
            f'({{"topic": [0, 1]}}), or load("topic"), must be set; here '
            f"{'none is' if not found else ' and '.join(found) + ' are'}"
        )
    text = given[found[0].lower()]
    if found == ["subscribe"]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            raise ValueError("option 'subscribe' names no topic")
        return dict.fromkeys(names), None
    if found == ["assign"]:
        return _assigned(text), None
    if found == ["path"]:
        return {text.strip(): None}, None
    if not text.strip():
        raise ValueError(
            "option 'subscribePattern' is empty; expected a regular expression for whole names, e.g. orders-.*"
        )
    try:
        return {}, re.compile(text.strip())
    except re.error as error:
        raise ValueError(f"option 'subscribePattern' is not a regular expression: {error}") from error


def _assigned(text: str) -> dict[str, frozenset[int] | None]:
    topics: dict[str, frozenset[int] | None] = {}
    for topic, partitions in parse_json_object("assign", text).items():
        if not isinstance(partitions, list) or not partitions or not all(_is_index(index) for index in partitions):
            raise ValueError(f"assign[{topic!r}] is {partitions!r}; expected a list of partitions, e.g. [0, 1]")
        topics[topic] = frozenset(partitions)
    if not topics:
        raise ValueError("option 'assign' names no topic")
    return topics


def _check_named(
    place: Place,
    topic: str,
    partitions: Mapping[int, int],
    topics: Mapping[str, frozenset[int] | None],
    pattern: re.Pattern[str] | None,
) -> None:
    read = topic in topics if pattern is None else pattern.fullmatch(topic) is not None
    if not read:
        raise ValueError(f"{place.name} names a topic that is not read: {topic}")
    assigned = topics.get(topic)
    unread = [] if assigned is None else sorted(set(partitions) - assigned)
    if unread:
        raise ValueError(f"{place.name} names partitions of {topic} that 'assign' does not: {unread}")


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _positive(name: str, text: str) -> int:
    number = parse_whole(text)
    if not number:
        raise ValueError(f"option {name!r} is {text!r}; expected a whole number from 1")
    return number


def _continues(given: Mapping[str, str]) -> bool:
    text = given.get("schemachange", "fail").strip().lower()
    if text not in ("fail", "latestatrestart"):
        raise ValueError(f"option 'schemaChange' is {given['schemachange']!r}; expected fail or latestAtRestart")
    return text == "latestatrestart"


def _group_id(given: Mapping[str, str]) -> str:
    text = given.get("groupid")
    if text is None:
        return ""
    if not 1 <= len(text.strip()) <= _GROUP_ID_MAX:
        raise ValueError(
            f"option 'groupId' is {text[:20]!r}; expected the id of a group, 1 to {_GROUP_ID_MAX} characters"
        )
    return text.strip()


def _history(given: Mapping[str, str]) -> str:
    text = given.get("history", "").strip()
    if "history" in given and not text:
        raise ValueError("option 'history' is empty; expected the directory of an archive of the topic")
    by_time = [name for name in given if text and name.startswith(("starting", "ending")) and "timestamp" in name]
    if by_time:
        raise ValueError(f"option {by_time[0]!r} is not for reads with 'history': filter the rows by a column instead")
    return text


def _isolation_level(given: Mapping[str, str]) -> str:
    found = {name: given[name].strip().lower() for name in ISOLATION_LEVEL if name in given}
    if len(set(found.values())) > 1:
        raise ValueError(f"options {' and '.join(map(repr, found))} contradict one another; remove one of them")
    for name, level in found.items():
        if level not in ISOLATION_LEVELS:
            raise ValueError(f"option {name!r} is {level!r}; expected {' or '.join(ISOLATION_LEVELS)}")
    return next(iter(found.values()), "read_committed")


def _duration_ms(name: str, text: str) -> int:
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*(|ms|s|m|min|h|d)\s*", text.lower())
    if found is None:
        raise ValueError(f"option {name!r} is {text!r}; expected a duration, e.g. 15m, 30s, 500ms, 2h or 1d")
    return int(found[1]) * _UNITS_MS[found[2]]

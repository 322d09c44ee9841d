# SPDX-License-Identifier: Apache-2.0
"""Requested reassignments: Kafka's JSON of version 1, and the checks before one begins (rule M1). Pure.

The command line, the admin service and the controller (for a node written manually) use the same functions. So all
three refuse the same requests with the same codes and messages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tidemark.core.topic_name import is_topic_name
from tidemark.model import (
    INT32_MAX,
    INT64_MAX,
    REQUEST_ID_CHARACTERS_MAX,
    BrokerId,
    ErrorCode,
    PartitionReassignment,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
)

VERSION: Final = 1
ANY_LOG_DIR: Final = "any"

_SHOWN_CHARACTERS_MAX: Final = 60


def parse_reassignments(text: str | bytes) -> tuple[tuple[PartitionReassignment, ...], tuple[TidemarkError, ...]]:
    """Parse a JSON document; returns its reassignments in order, and one error for each malformed entry.

    The first of several entries for one partition applies. `check_reassignments` checks the target of a well-formed
    entry. An error's metadata has "entry" (the first is 0), and "topic" and "partition" if they parse. A document that
    does not parse yields no reassignment and one error without "entry": INVALID_REQUEST or UNSUPPORTED_VERSION.
    """
    try:
        entries = _entries(text)
    except TidemarkError as error:
        return (), (error,)
    moves: dict[TopicPartition, PartitionReassignment] = {}
    errors = []
    for index, entry in enumerate(entries):
        try:
            move = _move(entry)
            if move.partition in moves:
                raise _duplicate_partition(move.partition)
            moves[move.partition] = move
        except TidemarkError as error:
            errors.append(_about_entry(index, entry, error))
    return tuple(moves.values()), tuple(errors)


def format_reassignments(moves: Iterable[PartitionReassignment]) -> str:
    """The same JSON, sorted by topic and partition, one entry a line; fields that are not set are omitted."""
    ordered = sorted(moves, key=lambda move: move.partition)
    lines = ",\n".join(f"    {json.dumps(fields_of(move), ensure_ascii=False)}" for move in ordered)
    partitions = f"[\n{lines}\n  ]" if lines else "[]"
    return f'{{\n  "version": {VERSION},\n  "partitions": {partitions}\n}}\n'


def fields_of(move: PartitionReassignment) -> dict[str, object]:
    """The fields of an entry in the document and in ZooKeeper; fields that are not set are omitted."""
    fields: dict[str, object] = {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "replicas": list(move.replicas),
    }
    if move.log_dirs:
        fields["log_dirs"] = list(move.log_dirs)
    if move.throttle_bytes_per_s:
        fields["throttle_bytes_per_s"] = move.throttle_bytes_per_s
    if move.cancel:
        fields["cancel"] = True
    if move.request_id:
        fields["request_id"] = move.request_id
    return fields


def check_reassignments(
    moves: Sequence[PartitionReassignment],
    topics: Mapping[str, TopicDescription],
    live: Collection[BrokerId],
    in_progress: Collection[TopicPartition],
    older: Collection[BrokerId] = (),
) -> dict[TopicPartition, TidemarkError]:
    """The first reason why each of these partitions cannot be reassigned as requested; empty: all can.

    Args:
        moves: the requests.
        topics: the existing topics.
        live: the live brokers.
        in_progress: partitions with a reassignment in progress.
        older: live brokers of versions without typed topics; they get no new replica of a typed topic.

    The target of a cancellation is not checked: a cancellation needs its partition and a reassignment in progress.
    """
    named = Counter(move.partition for move in moves)
    errors = {}
    for move in moves:
        try:
            if named[move.partition] > 1:
                raise _duplicate_partition(move.partition)
            if not move.cancel:
                _check_target(move)
            _check_exists(move.partition, topics)
            if not move.cancel:
                _check_live(move, live)
                _check_may_hold(move, topics[move.partition.topic], older)
            _check_progress(move, in_progress)
        except TidemarkError as error:
            errors[move.partition] = error
    return errors


def named_log_dirs(move: PartitionReassignment) -> dict[BrokerId, str]:
    """The named log directory, by path or uuid, of replicas of the target; replicas with "any" are omitted."""
    return {
        broker: directory
        for broker, directory in zip(move.replicas, move.log_dirs, strict=False)
        if directory != ANY_LOG_DIR
    }


# -- the document ----------------------------------------------------------------------------------------------


def _entries(text: str | bytes) -> list[object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else why
        raise invalid_request(f"the document is not JSON ({why}); give {_shape()}") from error
    if not isinstance(document, dict):
        raise invalid_request(f"the document is not a JSON object; give {_shape()}")
    version = document.get("version")
    if not _is_int(version) or version != VERSION:
        found = f"of version {_shown(version)}" if "version" in document else "without a version"
        raise TidemarkError(ErrorCode.UNSUPPORTED_VERSION, f'the document is {found}; write "version": {VERSION}')
    partitions = document.get("partitions")
    if not isinstance(partitions, list):
        raise invalid_request(f'the document has no list "partitions"; give {_shape()}')
    return partitions


def _move(entry: object) -> PartitionReassignment:
    if not isinstance(entry, dict):
        raise invalid_request(f"an entry is a JSON object, not {_shown(entry)}")
    partition = TopicPartition(_topic(entry.get("topic")), _whole(entry.get("partition"), '"partition"', INT32_MAX))
    request_id = _text(entry.get("request_id", ""), "request_id", partition)
    if len(request_id) > REQUEST_ID_CHARACTERS_MAX:
        raise invalid_request(
            f"the request_id of {partition} may have {REQUEST_ID_CHARACTERS_MAX} characters; shorten it"
        )
    replicas = _list(entry.get("replicas"), "replicas", partition)
    log_dirs = _list(entry.get("log_dirs", []), "log_dirs", partition)
    move = PartitionReassignment(
        partition,
        tuple(BrokerId(_whole(one, "a broker id", INT32_MAX)) for one in replicas),
        tuple(_text(one, "a log directory", partition) for one in log_dirs),
        _whole(entry.get("throttle_bytes_per_s", 0), "throttle_bytes_per_s", INT64_MAX),
        _flag(entry.get("cancel", False), "cancel", partition),
        request_id,
    )
    if "log_dirs" in entry and not move.log_dirs and move.replicas:
        raise _log_dirs_mismatch(move)
    return move


def _shape() -> str:
    return '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}'


def _about_entry(index: int, entry: object, error: TidemarkError) -> TidemarkError:
    facts = {"entry": str(index)}
    if isinstance(entry, dict):
        topic, partition = entry.get("topic"), entry.get("partition")
        if isinstance(topic, str) and is_topic_name(topic):
            facts["topic"] = topic
        if isinstance(partition, int) and _is_int(partition) and 0 <= partition <= INT32_MAX:
            facts["partition"] = str(partition)
    return TidemarkError(error.code, f"entry {index}: {error.message}", {**error.metadata, **facts})


# -- fields ----------------------------------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _topic(value: object) -> str:
    if not isinstance(value, str):
        raise invalid_request(f'an entry names its topic as "topic", not {_shown(value)}')
    if not is_topic_name(value):
        raise TidemarkError(
            ErrorCode.INVALID_TOPIC_NAME,
            f"{_shown(value)} is not a valid topic name; give 1 to 249 letters, digits, '.', '_' or '-'",
        )
    return value


def _whole(value: object, what: str, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise invalid_request(f"{what} is a whole number from 0 to {highest}, not {_shown(value)}")
    return value


def _list(value: object, what: str, partition: TopicPartition) -> list[object]:
    if not isinstance(value, list):
        raise invalid_request(f"{what} of {partition} is a list, not {_shown(value)}")
    return value


def _text(value: object, what: str, partition: TopicPartition) -> str:
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise invalid_request(f"{what} of {partition} is text, not {_shown(value)}")
    return value


def _flag(value: object, what: str, partition: TopicPartition) -> bool:
    if not isinstance(value, bool):
        raise invalid_request(f"{what} of {partition} is true or false, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return "a number that large"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS_MAX else f"{shown[:_SHOWN_CHARACTERS_MAX]}..."


# -- checks of a request ---------------------------------------------------------------------------------------


def _duplicate_partition(partition: TopicPartition) -> TidemarkError:
    message = f"partition {partition} is named more than once; name each partition once"
    return _refusal(ErrorCode.DUPLICATE_PARTITION, partition, message)


def _log_dirs_mismatch(move: PartitionReassignment) -> TidemarkError:
    return _refusal(
        ErrorCode.LOG_DIRS_MISMATCH,
        move.partition,
        f"the entry of {move.partition} has {len(move.log_dirs)} log_dirs for {len(move.replicas)} replicas. "
        f'Give one for each replica, "{ANY_LOG_DIR}" where the broker is to choose, or omit log_dirs',
    )


def _check_target(move: PartitionReassignment) -> None:
    partition, replicas = move.partition, move.replicas
    if move.log_dirs and len(move.log_dirs) != len(replicas):
        raise _log_dirs_mismatch(move)
    if not replicas:
        message = f"the entry of {partition} names no replicas; name the target brokers"
        raise _refusal(ErrorCode.EMPTY_REPLICAS, partition, message)
    twice = [broker for broker, times in Counter(replicas).items() if times > 1]
    if twice:
        message = f"the entry of {partition} names broker {_ids(twice)} more than once; name each broker once"
        raise _refusal(ErrorCode.DUPLICATE_REPLICA, partition, message, brokers=_ids(twice))
    unnamed = [broker for broker, directory in zip(replicas, move.log_dirs, strict=False) if not directory.strip()]
    if unnamed:
        message = (
            f"the entry of {partition} names no log directory for broker {_ids(unnamed)}. Give the path or the uuid of "
            f'one that tidemark log-dirs describe shows, or "{ANY_LOG_DIR}"'
        )
        raise _refusal(ErrorCode.LOG_DIR_NOT_FOUND, partition, message, brokers=_ids(unnamed))


def _check_exists(partition: TopicPartition, topics: Mapping[str, TopicDescription]) -> None:
    topic = topics.get(partition.topic)
    if topic is None:
        message = f"there is no topic {_shown(partition.topic)}; omit the entry, or create the topic first"
        raise _refusal(ErrorCode.UNKNOWN_TOPIC, partition, message)
    if partition.partition not in topic.partitions:
        message = (
            f"topic {partition.topic} has {len(topic.partitions)} partitions, and no partition {partition.partition}; "
            "omit the entry, or add partitions first"
        )
        raise _refusal(ErrorCode.UNKNOWN_PARTITION, partition, message)


def _check_live(move: PartitionReassignment, live: Collection[BrokerId]) -> None:
    missing = _ids(broker for broker in move.replicas if broker not in live)
    if missing:
        message = f"{move.partition} needs broker {missing}, which is not live; start it or name another"
        raise _refusal(ErrorCode.BROKER_NOT_AVAILABLE, move.partition, message, brokers=missing)


def _check_may_hold(move: PartitionReassignment, topic: TopicDescription, older: Collection[BrokerId]) -> None:
    assigned = topic.partitions[move.partition.partition]
    added = [broker for broker in move.replicas if broker in older and broker not in assigned]
    if topic.schemas and added:
        message = f"{move.partition} is of a typed topic: {too_old(added[0])}, or name another"
        raise _refusal(ErrorCode.INVALID_REQUEST, move.partition, message, broker=str(added[0]))


def too_old(broker: BrokerId) -> str:
    """Why the broker holds no replica of a typed topic, and the next step."""
    return f"broker {broker} has a version without typed topics, so upgrade that broker first"


def _check_progress(move: PartitionReassignment, in_progress: Collection[TopicPartition]) -> None:
    running = move.partition in in_progress
    if running and not move.cancel:
        message = f"partition {move.partition} is being reassigned already; wait for that, or cancel it first"
        raise _refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, move.partition, message)
    if move.cancel and not running:
        message = f"partition {move.partition} is not being reassigned; there is nothing to cancel"
        raise _refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, move.partition, message)


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(str(broker) for broker in brokers)


def _refusal(code: ErrorCode, partition: TopicPartition, message: str, **facts: str) -> TidemarkError:
    return TidemarkError(code, message, {**partition.facts, **facts})

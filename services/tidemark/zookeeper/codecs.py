# SPDX-License-Identifier: Apache-2.0
"""The JSON in ZooKeeper's znodes (docs/formats.md): strict writers, tolerant readers.

A reader ignores unknown fields and has defaults for fields of later versions. A required field that is missing, or has
another type, raises TidemarkError(INTERNAL) with the path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from tidemark.core.reassignment.request import fields_of
from tidemark.core.security.listeners import Endpoint, address_in, for_services_of
from tidemark.core.topic_name import is_topic_name
from tidemark.model import (
    NO_LEADER,
    REQUEST_ID_CHARACTERS_MAX,
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    PartitionReassignment,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    UncleanElection,
    error_of,
)
from tidemark.ports import ControllerInfo
from tidemark.rpc.channel import listener_of_services

VERSION: Final = 1

BROKER_EPOCH_MAX: Final = (1 << 24) - 1
"""Highest epoch that a reader accepts; a session that expired every 4 s would need two years for that many. A larger
epoch was written manually, and restoring a lost epoch znode takes as many writes as its epoch."""
_INDEX_MAX: Final = (1 << 31) - 1
_LEADER_EPOCH_MAX: Final = (1 << 30) - 1
_LINEAGE_MAX: Final = (1 << 62) - 1
"""Highest numbers that a reader accepts, so that the next ones fit into messages and batches."""
_PORT_MAX: Final = (1 << 16) - 1
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{0,128}")
"""Names that a reader accepts; names in znodes become part of paths."""
_STATES_KEPT: Final = 8192
"""Different states that are kept: thousands of partitions have the same few."""
_REPORT_NUMBERS: Final = ("lineage", "leader", "leader_epoch", "elected_at_ms")
_REPORT_FIGURES: Final = ("last_epoch", "log_end_offset", "high_watermark")
"""Fields of a loss report, which are attributes of the report; figures may be unknown."""
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

T = TypeVar("T")


class _MalformedError(ValueError):
    """The content is not of the format; the message is a sentence for an operator."""


def encode(fields: Mapping[str, object]) -> bytes:
    """Compact JSON with the format's version in front."""
    return _ENCODER.encode({"version": VERSION, **fields}).encode()


def decode(path: str, data: bytes, build: Callable[[Mapping[str, Any]], T]) -> T:
    """Build a value from the JSON object in a node; raises INTERNAL with a reason for an operator."""
    return _read(path, data, lambda found: build(_object_of(found)))


def _read(path: str, data: bytes, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(data)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise TidemarkError(
            ErrorCode.INTERNAL, f"the ZooKeeper node {path} cannot be understood: {_why(error)}", {"path": path}
        ) from error


def _object_of(data: bytes) -> dict[str, Any]:
    if not data:
        raise _MalformedError("it is empty")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:  # bytes that no encoding decodes raise a ValueError, too
        raise _MalformedError("its content is not JSON") from error
    if not isinstance(fields, dict):
        raise _MalformedError("it is not a JSON object")
    if not (data.isascii() and b"\\u" not in data):
        _check_text(fields)
    return fields


def _check_text(fields: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair, which JSON may have: no message holds such text, and its encoding raises."""
    try:
        _ENCODER.encode(fields).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise _MalformedError("it has text that is not Unicode") from error


def _why(error: Exception) -> str:
    """The reason for an operator; the messages of Python's own errors name no field."""
    if isinstance(error, _MalformedError):
        return str(error)
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else "a field has a wrong type or value"


def _int(value: object, bits: int = 64) -> int:
    """An integer with the width of its protobuf field; a larger integer would fail only when it is encoded in a
    message.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise _MalformedError(f"{value!r} is not a whole number")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _MalformedError(f"the number does not fit into {bits} bits")
    return value


def int64_of(value: object) -> int:
    """A whole number of 64 bits."""
    return _int(value)


def _int32(value: object) -> int:
    return _int(value, 32)


def _not_negative(value: object, most: int) -> int:
    if not 0 <= _int(value) <= most:
        raise _MalformedError(f"{value!r} is not between 0 and {most}")
    return _int(value)


def _broker_id(value: object) -> BrokerId:
    broker_id = BrokerId(_int32(value))
    if broker_id < 0:
        raise _MalformedError(f"{broker_id} is not an id of a broker")
    return broker_id


def name_of(value: object) -> str:
    """A name that is safe as part of a path."""
    if _NAME.fullmatch(_str(value)) is None:
        raise _MalformedError("a name must have letters, digits, '.', '_' and '-' only")
    return _str(value)


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise _MalformedError(f"{value!r} is not a string")
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _MalformedError(f"{value!r} is neither true nor false")
    return value


@lru_cache(_STATES_KEPT)
def encode_state(state: LeaderAndIsr) -> bytes:
    """Encode a leaderAndISR node."""
    names = ("leader", "leader_epoch", "isr", "elr", "last_known", "min_isr", "lineage", "sealed", "controller_epoch")
    return encode({name: getattr(state, name) for name in names})


def decode_state(path: str, data: bytes) -> LeaderAndIsr:
    """Inverse of `encode_state`; nodes with the same content share one state."""
    return _read(path, data, _state_of)


@lru_cache(_STATES_KEPT)
def _state_of(data: bytes) -> LeaderAndIsr:
    fields = _object_of(data)
    leader, isr = BrokerId(_int32(fields["leader"])), _entries(fields["isr"])
    if leader != NO_LEADER and leader not in {entry.broker_id for entry in isr}:
        raise _MalformedError(f"its leader {leader} is not in its isr")
    return LeaderAndIsr(
        leader=leader,
        leader_epoch=LeaderEpoch(_not_negative(fields["leader_epoch"], _LEADER_EPOCH_MAX)),
        isr=isr,
        elr=_entries(fields.get("elr", ())),
        last_known=_entries(fields.get("last_known", ())),
        min_isr=_int32(fields.get("min_isr", 1)),
        lineage=_not_negative(fields.get("lineage", 0), _LINEAGE_MAX),
        sealed=_bool(fields.get("sealed", False)),
        controller_epoch=ControllerEpoch(_int32(fields.get("controller_epoch", 0))),
    )


def _entries(pairs: Iterable[Any]) -> tuple[IsrEntry, ...]:
    found = tuple(IsrEntry(_broker_id(broker_id), BrokerEpoch(_int(broker_epoch))) for broker_id, broker_epoch in pairs)
    if len({entry.broker_id for entry in found}) < len(found):
        raise _MalformedError("it names a broker twice")
    return found


def encode_registration(registration: BrokerRegistration) -> bytes:
    """Encode a node of /brokers/ids."""
    fields: dict[str, Any] = {
        "host": registration.host,
        "port": registration.port,
        "rack": registration.rack,
        "directories": list(registration.directory_ids),
        "boot_id": registration.boot_id,
        "broker_epoch": registration.broker_epoch,
        "features": dict(registration.features),
    }
    if registration.endpoints:
        fields["endpoints"] = list(registration.endpoints)
    return encode(fields)


def decode_registration(path: str, data: bytes, broker_id: BrokerId) -> BrokerRegistration:
    """Inverse of `encode_registration`, with the address at the listener that this process uses."""
    broker = decode(
        path,
        data,
        lambda fields: BrokerRegistration(
            broker_id=broker_id,
            host=_str(fields["host"]),
            port=_not_negative(fields["port"], _PORT_MAX),
            broker_epoch=BrokerEpoch(_not_negative(fields["broker_epoch"], BROKER_EPOCH_MAX)),
            rack=_str(fields.get("rack", "")),
            directory_ids=tuple(_str(item) for item in fields.get("directories", ())),
            boot_id=_str(fields.get("boot_id", "")),
            features={_str(name): _int32(level) for name, level in fields.get("features", {}).items()},
            endpoints=tuple(str(Endpoint.parse(_str(one))) for one in fields.get("endpoints", ())),
        ),
    )
    return for_services_of(listener_of_services(), broker)


def encode_broker_epoch(
    directory_ids: Iterable[str], unclean_at: BrokerEpoch, lost_at: BrokerEpoch, crashed_at: BrokerEpoch
) -> bytes:
    """Encode a znode of /brokers/epochs; the epoch itself is the znode's version."""
    fields = {"unclean_at": unclean_at, "lost_at": lost_at, "crashed_at": crashed_at}
    return encode({"directories": list(directory_ids), **fields})


def decode_broker_epoch(path: str, data: bytes, version: int) -> BrokerEpochRecord:
    """Inverse of `encode_broker_epoch`, with the znode's version as the epoch."""
    return decode(
        path,
        data,
        lambda fields: BrokerEpochRecord(
            broker_epoch=BrokerEpoch(version),
            directory_ids=tuple(_str(item) for item in fields.get("directories", ())),
            unclean_at=_past_epoch(fields.get("unclean_at", -1)),
            lost_at=_past_epoch(fields.get("lost_at", fields.get("unclean_at", -1))),
            crashed_at=_past_epoch(fields.get("crashed_at", -1)),
        ),
    )


def _past_epoch(value: object) -> BrokerEpoch:
    """The broker epoch of an earlier registration; -1: there was none."""
    epoch = BrokerEpoch(_int(value))
    if not -1 <= epoch <= BROKER_EPOCH_MAX:
        raise _MalformedError(f"{epoch} is not an epoch of a broker")
    return epoch


def encode_topic(topic: TopicDescription) -> bytes:
    """Encode a node of /brokers/topics."""
    return encode(
        {
            "topic_id": topic.topic_id,
            "partitions": _replicas_out(topic.partitions),
            "incarnations": {str(partition): found for partition, found in sorted(topic.incarnations.items())},
            "adding": _replicas_out(topic.adding),
            "removing": _replicas_out(topic.removing),
            "original": _replicas_out(topic.original),
        }
    )


def decode_topic(path: str, data: bytes, name: str) -> TopicDescription:
    """Inverse of `encode_topic`, without configs, zxids and version; an invalid topic name is refused."""
    if not is_topic_name(name):
        sentence = f"the ZooKeeper node {path} cannot be understood: no topic has such a name; delete the node"
        raise TidemarkError(ErrorCode.INTERNAL, sentence, {"path": path})
    return decode(path, data, lambda fields: _topic_in(name, fields))


def _topic_in(name: str, fields: Mapping[str, Any]) -> TopicDescription:
    partitions = _all_partitions(fields["partitions"])
    adding, removing, original = (_replicas_in(fields.get(kind, {})) for kind in ("adding", "removing", "original"))
    unknown = {*adding, *removing, *original} - set(partitions)
    if unknown:
        raise _MalformedError(f"it names a reassignment of partition {min(unknown)}, which it does not have")
    return TopicDescription(
        topic=name,
        topic_id=name_of(fields["topic_id"]),
        partitions=partitions,
        incarnations={_index(partition): name_of(found) for partition, found in fields["incarnations"].items()},
        adding=adding,
        removing=removing,
        original=original,
    )


def _replicas_out(partitions: Mapping[int, tuple[BrokerId, ...]]) -> dict[str, list[BrokerId]]:
    return {str(partition): list(replicas) for partition, replicas in sorted(partitions.items())}


def _replicas_in(partitions: Mapping[str, Iterable[Any]]) -> dict[int, tuple[BrokerId, ...]]:
    return {_index(partition): tuple(map(_broker_id, replicas)) for partition, replicas in partitions.items()}


def _all_partitions(partitions: Mapping[str, Iterable[Any]]) -> dict[int, tuple[BrokerId, ...]]:
    found = _replicas_in(partitions)
    if not found or set(found) != set(range(len(found))):
        raise _MalformedError("its partitions are not numbered from 0 on")
    for index, replicas in found.items():
        if not replicas or len(set(replicas)) < len(replicas):
            raise _MalformedError(f"partition {index} has no replicas, or one twice")
    return found


def _index(text: str) -> int:
    if not text.isdecimal() or str(int(text)) != text:
        raise _MalformedError(f"{text[:40]!r} is not a number of a partition")
    return _int32(int(text))


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """Encode a node of /config/topics: the explicit settings."""
    return encode({"config": dict(sorted(configs.items()))})


def decode_configs(path: str, data: bytes) -> dict[str, str]:
    """Inverse of `encode_configs`."""
    return decode(
        path, data, lambda fields: {_str(key): _str(value) for key, value in fields.get("config", {}).items()}
    )


def encode_elections(partitions: Iterable[TopicPartition], request_id: str, *, rebuilds_states: bool = False) -> bytes:
    """Encode a request for elections, in the JSON of Kafka's preferred_replica_election.

    `request_id` and `rebuild_state` are Tidemark's additions.
    """
    fields: dict[str, object] = {"partitions": [{"topic": one.topic, "partition": one.partition} for one in partitions]}
    fields |= {"request_id": request_id} if request_id else {}
    return encode(fields | {"rebuild_state": True} if rebuilds_states else fields)


class DecodedElections(NamedTuple):
    """Partitions, each once; the request id; and whether to rebuild unreadable states (rule Z4)."""

    partitions: tuple[TopicPartition, ...]
    request_id: str
    rebuilds_states: bool


def decode_elections(path: str, data: bytes) -> DecodedElections:
    """Inverse of `encode_elections`; operators write this znode manually, too."""

    def build(fields: Mapping[str, Any]) -> DecodedElections:
        if _int(fields.get("version", VERSION)) != VERSION:
            raise _MalformedError(f"its version is {fields['version']}, not {VERSION}")
        if not isinstance(fields["partitions"], list):
            raise _MalformedError("its partitions are not a list")
        request_id = _str(fields.get("request_id", ""))
        if len(request_id) > REQUEST_ID_CHARACTERS_MAX:
            raise _MalformedError(f"its request_id has more than {REQUEST_ID_CHARACTERS_MAX} characters")
        named = [TopicPartition(_str(one["topic"]), _int(one["partition"])) for one in fields["partitions"]]
        for one in named:
            if not is_topic_name(one.topic) or one.partition < 0:
                raise _MalformedError(f"{one.topic[:40]!r}, {one.partition} cannot be a partition")
        return DecodedElections(tuple(dict.fromkeys(named)), request_id, _bool(fields.get("rebuild_state", False)))

    return decode(path, data, build)


def encode_moves(moves: Iterable[PartitionReassignment]) -> bytes:
    """Encode /admin/reassign_partitions, in Kafka's JSON; fields that only Tidemark has are omitted if they are not
    set.
    """
    return encode({"partitions": [fields_of(move) for move in moves]})


def encode_added_partition(replicas: Iterable[BrokerId]) -> bytes:
    """Encode a node below /admin/partitions_add."""
    return encode({"replicas": list(replicas)})


def decode_added_partition(path: str, data: bytes) -> tuple[BrokerId, ...]:
    """The assigned replicas of the new partition; operators write this znode manually, too."""
    return decode(path, data, lambda fields: tuple(BrokerId(_int(replica)) for replica in fields["replicas"]))


def encode_removed_partition(force: bool) -> bytes:
    """Encode a node below /admin/partitions_remove."""
    return encode({"force": force})


def decode_removed_partition(path: str, data: bytes) -> bool:
    """Whether to remove a partition that still has records; an empty znode means no."""
    return decode(path, data or b"{}", lambda fields: _bool(fields.get("force", False)))


def encode_refusals(refusals: Iterable[Refusal]) -> bytes:
    """Encode /admin/refusals, the oldest first."""
    return encode(
        {
            "refusals": [
                {
                    "kind": one.kind,
                    "topic": None if one.partition is None else one.partition.topic,
                    "partition": None if one.partition is None else one.partition.partition,
                    "code": str(one.error.code),
                    "message": one.error.message,
                    "request_id": one.request_id,
                    "at_ms": one.at_ms,
                }
                for one in refusals
            ]
        }
    )


def decode_refusals(path: str, data: bytes) -> tuple[Refusal, ...]:
    """Inverse of `encode_refusals`."""
    return decode(path, data, lambda fields: tuple(_refusal(one) for one in fields["refusals"]))


def _refusal(fields: Mapping[str, Any]) -> Refusal:
    partition = None
    if fields["topic"] is not None:
        index = _int(fields["partition"])  # a refused request need not name a valid partition
        partition = TopicPartition(_str(fields["topic"]), index if abs(index) <= _INDEX_MAX else -1)
    error = error_of(_str(fields["code"]), _str(fields["message"]))
    return Refusal(_str(fields["kind"]), partition, error, _str(fields["request_id"]), _int(fields["at_ms"]))


def encode_unclean_elections(reports: Iterable[UncleanElection]) -> bytes:
    """Encode the loss reports of one partition, the oldest first."""
    return encode(
        {
            "elections": [
                {
                    "topic": one.partition.topic,
                    "partition": one.partition.partition,
                    "topic_id": one.topic_id,
                    **{name: getattr(one, name) for name in (*_REPORT_NUMBERS, *_REPORT_FIGURES)},
                    "unheard": one.unheard,
                    "request_id": one.request_id,
                }
                for one in reports
            ]
        }
    )


def decode_unclean_elections(path: str, data: bytes) -> tuple[UncleanElection, ...]:
    """Inverse of `encode_unclean_elections`."""
    return decode(path, data, lambda fields: tuple(_unclean_election(one) for one in fields["elections"]))


def _unclean_election(fields: Mapping[str, Any]) -> UncleanElection:
    numbers: dict[str, Any] = {name: _int(fields[name]) for name in _REPORT_NUMBERS}
    figures = {name: None if fields[name] is None else _int(fields[name]) for name in _REPORT_FIGURES}
    return UncleanElection(
        partition=TopicPartition(_str(fields["topic"]), _int(fields["partition"])),
        topic_id=_str(fields["topic_id"]),
        unheard=tuple(BrokerId(_int(broker)) for broker in fields["unheard"]),
        request_id=_str(fields["request_id"]),
        **(numbers | figures),
    )


def encode_controller(controller_id: BrokerId, address: str, election_wait_ms: int) -> bytes:
    """Encode the content of the /controller node: id, address and election wait."""
    return encode({"id": controller_id, "address": address, "election_wait_ms": election_wait_ms})


def decode_controller(path: str, data: bytes) -> ControllerInfo:
    """Inverse of `encode_controller`, with the address at the listener that this process uses."""
    return decode(
        path,
        data,
        lambda fields: ControllerInfo(
            BrokerId(_int32(fields["id"])),
            address_in(_str(fields.get("address", "")), listener_of_services()),
            _int(fields.get("election_wait_ms", -1)),
        ),
    )


def encode_number(name: str, number: int) -> bytes:
    """Encode a node that holds one number: /controller_epoch ("epoch"), /producer_ids ("next")."""
    return encode({name: number})


def decode_number(path: str, data: bytes, name: str) -> int:
    """Inverse of `encode_number`."""
    return decode(path, data, lambda fields: _int(fields[name]))


def encode_cluster_id(cluster_id: str) -> bytes:
    """Encode the /cluster/id node."""
    return encode({"id": cluster_id})


def decode_cluster_id(path: str, data: bytes) -> str:
    """Inverse of `encode_cluster_id`."""
    return decode(path, data, lambda fields: _str(fields["id"]))

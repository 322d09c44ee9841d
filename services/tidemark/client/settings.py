# SPDX-License-Identifier: Apache-2.0
"""Settings of producers and consumers, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

from tidemark.client.argument_types import flag, integer, number, text, versions
from tidemark.client.isolation_levels import check_isolation_level
from tidemark.core.quotas.client_ids import check_client_id
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, TidemarkError
from tidemark.record.envelope import Codec

_ACKS: Final = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_OUT_OF_RANGE: Final = ("fail", "earliest", "latest")


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of `producer_settings`, and of the producers in addition to their own."""

    acks: str | int
    enable_idempotence: bool | None
    linger_ms: float
    batch_bytes: int
    max_in_flight: int
    codec: str
    delivery_timeout_ms: int
    request_timeout_ms: int
    buffer_bytes: int
    client_id: str
    transactional_id: str
    transaction_timeout_ms: int


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Checked settings of a producer; see `producer_settings`."""

    acks: int
    idempotent: bool
    linger_ms: float
    batch_bytes: int
    max_in_flight: int
    codec: Codec
    delivery_timeout_ms: int
    request_timeout_ms: int
    buffer_bytes: int
    client_id: str = ""
    transactional_id: str = ""
    transaction_timeout_ms: int = 60_000


def checked_client_id(client_id: str) -> str:
    """The client id, or ""; raises INVALID_CONFIG for one that no client may have."""
    try:
        return check_client_id(text("client_id", client_id)) if client_id != "" else ""
    except TidemarkError as error:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, error.message) from None


def check_bounds(*settings: tuple[str, float, float, float]) -> None:
    """Raise INVALID_CONFIG for a setting (name, value, smallest, largest) outside its bounds."""
    for name, value, smallest, largest in settings:
        if not smallest <= value <= largest:
            raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{name} is {value}: expected {smallest} to {largest}")


def producer_settings(
    *,
    acks: str | int = "all",
    enable_idempotence: bool | None = None,
    linger_ms: float = 5,
    batch_bytes: int = 128 << 10,
    max_in_flight: int = REMEMBERED_BATCHES,
    codec: str = "none",
    delivery_timeout_ms: int = 120_000,
    request_timeout_ms: int = 30_000,
    buffer_bytes: int = 64 << 20,
    client_id: str = "",
    transactional_id: str = "",
    transaction_timeout_ms: int = 60_000,
) -> ProducerSettings:
    """Check the settings and fill in defaults.

    Args:
        acks: replicas that must have a record before the leader acknowledges it: "all" in-sync replicas, 1 (the
            leader), or 0 (no acknowledgement).
        enable_idempotence: retries neither duplicate nor reorder; needs acks="all". None: on with acks="all".
        linger_ms: time that a batch waits for more records, 0 to 60,000.
        batch_bytes: size at which a batch is sent immediately, up to 8 MiB.
        max_in_flight: batches of one partition in flight at the same time, 1 to 10.
        codec: compression: "none", "lz4" or "zstd".
        delivery_timeout_ms: time after which a record without acknowledgement fails.
        request_timeout_ms: timeout of one request, and of the lookup of a topic.
        buffer_bytes: bytes without acknowledgement at which `send` blocks.
        client_id: a name of this client, for quotas and metrics of brokers.
        transactional_id: a name for `transaction`, of one running producer at a time; "": no transactions.
        transaction_timeout_ms: the coordinator aborts a transaction that is open for longer.

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_ACKS, INVALID_TRANSACTIONAL_ID.
        TypeError: a setting has a wrong type.
    """
    level = _acks_level(acks, enable_idempotence)
    if text("codec", codec) not in _CODECS:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"codec is {codec!r}: expected none, lz4 or zstd")
    idempotent = level == -1 and enable_idempotence is not False
    check_bounds(("linger_ms", number("linger_ms", linger_ms), 0, 60_000))
    check_bounds(
        ("batch_bytes", integer("batch_bytes", batch_bytes), 1, 8 << 20),
        ("max_in_flight", integer("max_in_flight", max_in_flight), 1, REMEMBERED_BATCHES),
        ("delivery_timeout_ms", integer("delivery_timeout_ms", delivery_timeout_ms), 1, 86_400_000),
        ("request_timeout_ms", integer("request_timeout_ms", request_timeout_ms), 1, 300_000),
        ("buffer_bytes", integer("buffer_bytes", buffer_bytes), 1, 1 << 40),
    )
    _check_transactions(transactional_id, transaction_timeout_ms, is_safe=idempotent)
    if linger_ms >= delivery_timeout_ms:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"linger_ms is {linger_ms} and delivery_timeout_ms {delivery_timeout_ms}: nothing would be sent in time",
        )
    return ProducerSettings(
        acks=level,
        idempotent=idempotent,
        linger_ms=linger_ms,
        batch_bytes=batch_bytes,
        max_in_flight=max_in_flight,
        codec=_CODECS[codec],
        delivery_timeout_ms=delivery_timeout_ms,
        request_timeout_ms=request_timeout_ms,
        buffer_bytes=buffer_bytes,
        client_id=checked_client_id(client_id),
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
    )


def _acks_level(acks: str | int, enable_idempotence: bool | None) -> int:
    """The number for `acks` in a request, -1 for "all"; raises INVALID_ACKS, INVALID_CONFIG."""
    level = _ACKS.get(acks if isinstance(acks, str) else integer("acks", acks))
    if level is None:
        raise TidemarkError(ErrorCode.INVALID_ACKS, f"acks is {acks!r}: expected 0, 1 or 'all'")
    if enable_idempotence is not None and flag("enable_idempotence", enable_idempotence) and level != -1:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"idempotence needs acks='all', not {acks!r}")
    return level


def _check_transactions(transactional_id: str, timeout_ms: int, *, is_safe: bool) -> None:
    if text("transactional_id", transactional_id):
        from tidemark.core.transactions.refusals import check_transactional_id  # readers do not need the module

        check_transactional_id(transactional_id)
        if not is_safe:
            raise TidemarkError(ErrorCode.INVALID_CONFIG, "transactions need acks='all' and idempotence: give neither")
    check_bounds(("transaction_timeout_ms", integer("transaction_timeout_ms", timeout_ms), 1, (1 << 31) - 1))


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `consumer_settings`, and of the consumers in addition to their own."""

    fetch_max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    read_ahead_bytes: int
    request_timeout_ms: int
    out_of_range: str
    rack: str
    client_id: str
    isolation_level: str
    schema_versions: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Checked settings of a consumer; see `consumer_settings`."""

    fetch_max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    read_ahead_bytes: int
    request_timeout_ms: int
    out_of_range: str
    rack: str = ""
    client_id: str = ""
    isolation_level: str = "read_uncommitted"
    schema_versions: Mapping[str, int] = field(default_factory=dict)


def consumer_settings(
    *,
    fetch_max_wait_ms: int = 5_000,
    max_bytes: int = 4 << 20,
    max_partition_bytes: int = 2 << 20,
    read_ahead_bytes: int = 32 << 20,
    request_timeout_ms: int = 30_000,
    out_of_range: str = "fail",
    rack: str = "",
    client_id: str = "",
    isolation_level: str = "read_uncommitted",
    schema_versions: Mapping[str, int] | None = None,
) -> ConsumerSettings:
    """Check the settings of a consumer and fill in defaults.

    Args:
        fetch_max_wait_ms: time that a broker holds a fetch while there are no records; records end the wait. So the
            setting changes the cost of an idle consumer, and delays no record.
        max_bytes: soft limit of one fetch.
        max_partition_bytes: soft limit of one partition in a fetch, and of its bytes read ahead.
        read_ahead_bytes: bytes read ahead above which the consumer sends no fetch; fetches in flight may exceed it.
        request_timeout_ms: timeout of a lookup with its retries; of a fetch, the time beyond its wait.
        out_of_range: reaction when records were deleted before they were read. "fail" raises OFFSET_OUT_OF_RANGE,
            "earliest" continues at the log start, "latest" at the end. The last two log the number of skipped offsets.
        rack: rack of this consumer, as in `broker.rack`: it reads from an in-sync replica there, if there is one; "":
            from the leader.
        client_id: a name of this client, for quotas and metrics of brokers, and shown when its group is described.
        isolation_level: "read_committed" returns records up to the last stable offset, and none of aborted
            transactions; "read_uncommitted" returns all records up to the high watermark.
        schema_versions: versions by topic, such as {"flights": 2}: rows of other versions become rows of this one.
            None: rows come in the newest version.

    Raises:
        TidemarkError: INVALID_CONFIG.
        TypeError: a setting has a wrong type.
    """
    if not isinstance(rack, str):
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"rack is {rack!r}: expected text, as broker.rack has it")
    if text("out_of_range", out_of_range) not in _OUT_OF_RANGE:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG, f"out_of_range is {out_of_range!r}: expected {', '.join(_OUT_OF_RANGE)}"
        )
    check_isolation_level(isolation_level)
    check_bounds(
        ("fetch_max_wait_ms", integer("fetch_max_wait_ms", fetch_max_wait_ms), 0, 30_000),
        ("max_bytes", integer("max_bytes", max_bytes), 1, 7 << 20),
        ("max_partition_bytes", integer("max_partition_bytes", max_partition_bytes), 1, 7 << 20),
        ("read_ahead_bytes", integer("read_ahead_bytes", read_ahead_bytes), 1, 1 << 40),
        ("request_timeout_ms", integer("request_timeout_ms", request_timeout_ms), 1, 300_000),
    )
    return ConsumerSettings(
        fetch_max_wait_ms,
        max_bytes,
        max_partition_bytes,
        read_ahead_bytes,
        request_timeout_ms,
        out_of_range,
        rack,
        checked_client_id(client_id),
        isolation_level,
        versions("schema_versions", schema_versions or {}),
    )

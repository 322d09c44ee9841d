# SPDX-License-Identifier: Apache-2.0
"""Settings of producers and consumers, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Codec

_ACKS: Final = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_OUT_OF_RANGE: Final = ("fail", "earliest", "latest")
IN_FLIGHT_MAX: Final = 5
"""Most batches in flight: a broker keeps the sequences of so many batches for each producer (rule P1)."""


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


def producer_settings(
    *,
    acks: str | int = "all",
    enable_idempotence: bool | None = None,
    linger_ms: float = 5,
    batch_bytes: int = 128 << 10,
    max_in_flight: int = IN_FLIGHT_MAX,
    codec: str = "none",
    delivery_timeout_ms: int = 120_000,
    request_timeout_ms: int = 30_000,
    buffer_bytes: int = 64 << 20,
) -> ProducerSettings:
    """Check the settings and fill in defaults.

    Args:
        acks: replicas that must have a record before the leader acknowledges it: "all" in-sync replicas, 1 (the
            leader), or 0 (no acknowledgement).
        enable_idempotence: retries neither duplicate nor reorder; needs acks="all". None: on with acks="all".
        linger_ms: time that a batch waits for more records, 0 to 60,000.
        batch_bytes: size at which a batch is sent at once, up to 8 MiB.
        max_in_flight: batches of one partition in flight at once, 1 to 5.
        codec: compression: "none", "lz4" or "zstd".
        delivery_timeout_ms: time after which a record without acknowledgement fails.
        request_timeout_ms: timeout of one request, and of the look-up of a topic.
        buffer_bytes: bytes without acknowledgement at which `send` blocks.

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_ACKS.
    """
    if acks not in _ACKS:
        raise TidemarkError(ErrorCode.INVALID_ACKS, f"acks is {acks!r}: want 0, 1 or 'all'")
    if codec not in _CODECS:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"codec is {codec!r}: want none, lz4 or zstd")
    level = _ACKS[acks]
    if enable_idempotence and level != -1:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"idempotence needs acks='all', not {acks!r}")
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("linger_ms", linger_ms, 0, 60_000),
        ("batch_bytes", batch_bytes, 1, 8 << 20),
        ("max_in_flight", max_in_flight, 1, IN_FLIGHT_MAX),
        ("delivery_timeout_ms", delivery_timeout_ms, 1, 86_400_000),
        ("request_timeout_ms", request_timeout_ms, 1, 300_000),
        ("buffer_bytes", buffer_bytes, 1, 1 << 40),
    )
    for name, value, smallest, largest in bounds:
        if not smallest <= value <= largest:
            raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{name} is {value}: want {smallest} to {largest}")
    if linger_ms >= delivery_timeout_ms:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"linger_ms is {linger_ms} and delivery_timeout_ms {delivery_timeout_ms}: nothing would be sent in time",
        )
    return ProducerSettings(
        acks=level,
        idempotent=level == -1 and enable_idempotence is not False,
        linger_ms=linger_ms,
        batch_bytes=batch_bytes,
        max_in_flight=max_in_flight,
        codec=_CODECS[codec],
        delivery_timeout_ms=delivery_timeout_ms,
        request_timeout_ms=request_timeout_ms,
        buffer_bytes=buffer_bytes,
    )


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


def consumer_settings(
    *,
    fetch_max_wait_ms: int = 5_000,
    max_bytes: int = 4 << 20,
    max_partition_bytes: int = 2 << 20,
    read_ahead_bytes: int = 32 << 20,
    request_timeout_ms: int = 30_000,
    out_of_range: str = "fail",
    rack: str = "",
) -> ConsumerSettings:
    """Check the settings.

    Args:
        fetch_max_wait_ms: time that a broker holds a fetch while there are no records. With records it answers at once,
            so this setting is the cost of an idle consumer, not a delay.
        max_bytes: soft limit of one fetch.
        max_partition_bytes: soft limit of one partition in a fetch, and of its bytes read ahead.
        read_ahead_bytes: bytes read ahead above which the consumer sends no fetch; fetches in flight may exceed it.
        request_timeout_ms: timeout of a look-up with its retries; of a fetch, the time beyond its wait.
        out_of_range: reaction when records were deleted before they were read: "fail" raises OFFSET_OUT_OF_RANGE,
            "earliest" continues at the log start, "latest" at the end; both log the number of skipped offsets.
        rack: rack of this consumer, as in `broker.rack`: it reads from an in-sync replica there, if there is one; "":
            from the leader.

    Raises:
        TidemarkError: INVALID_CONFIG.
    """
    if not isinstance(rack, str):
        raise TidemarkError(ErrorCode.INVALID_CONFIG, f"rack is {rack!r}: want text, as broker.rack has it")
    if out_of_range not in _OUT_OF_RANGE:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG, f"out_of_range is {out_of_range!r}: want {', '.join(_OUT_OF_RANGE)}"
        )
    bounds = (
        ("fetch_max_wait_ms", fetch_max_wait_ms, 0, 30_000),
        ("max_bytes", max_bytes, 1, 7 << 20),
        ("max_partition_bytes", max_partition_bytes, 1, 7 << 20),
        ("read_ahead_bytes", read_ahead_bytes, 1, 1 << 40),
        ("request_timeout_ms", request_timeout_ms, 1, 300_000),
    )
    for name, value, smallest, largest in bounds:
        if not smallest <= value <= largest:
            raise TidemarkError(ErrorCode.INVALID_CONFIG, f"{name} is {value}: want {smallest} to {largest}")
    return ConsumerSettings(
        fetch_max_wait_ms, max_bytes, max_partition_bytes, read_ahead_bytes, request_timeout_ms, out_of_range, rack
    )

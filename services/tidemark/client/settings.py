# SPDX-License-Identifier: Apache-2.0
"""What a producer and a consumer can be told, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Codec

_ACKS: Final = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_OUT_OF_RANGE: Final = ("fail", "earliest", "latest")
IN_FLIGHT_MAX: Final = 5
"""More of one producer's batches a partition does not remember (rule P1)."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Times in milliseconds, sizes in bytes."""

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
    """Check and complete; raises INVALID_CONFIG or INVALID_ACKS."""
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
    """Times in milliseconds, sizes in bytes."""

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
    """Check; raises INVALID_CONFIG.

    Args:
        fetch_max_wait_ms: how long a broker may wait for something to answer with; it answers at once when there is
            something, so this is what an idle consumer costs, not a delay.
        max_bytes: soft limit of one fetch.
        max_partition_bytes: soft limit of one partition's part in it, and of what is read ahead of it.
        read_ahead_bytes: above so much nothing more is asked for; fetches under way may still add to it.
        request_timeout_ms: of a lookup with its retries; of a fetch beyond its wait.
        out_of_range: what to do when records were deleted before they were read: "fail" raises OFFSET_OUT_OF_RANGE,
            "earliest" goes on with the first there is, "latest" with those to come; both say how many were missed.
        rack: where this consumer is, as `broker.rack` names it: records come from a replica in sync there, if there is
            one, instead of from the leader; "" for the leader always.
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

# SPDX-License-Identifier: Apache-2.0
"""Options of transactional writes, and the transactional id of each write. Pure.

The id of a streaming query is made of Spark's id of the query, which its checkpoint holds. A restarted query has the
same id, and a query with a new checkpoint has another id. Each batch write has a separate id, unless the job names an
application and a version for it. Delta Lake uses the same option names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidemark_spark.common_options import parse_whole

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property of a streaming query, in the driver's thread and in tasks."""
_PREFIX: Final = "spark-"
_ID_MAX: Final = 249
_FIRST_SEQUENCE: Final = 0
TIMEOUT_MS: Final = 60_000
_TIMEOUT_MS_MIN: Final = 1000


class Mode(StrEnum):
    """Values of the option `transactional`."""

    AUTO = "auto"  # in transactions if the cluster allows them; else at least once, with a warning
    TRUE = "true"  # in transactions, or not at all
    FALSE = "false"  # at least once


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Options of a write that concern its transaction.

    Attributes:
        mode: see `Mode`.
        timeout_ms: the coordinator aborts the transaction when no task has kept it for this time.
        app_id: name of the writer, in place of a generated name; "": none.
        version: number of a batch write; writes of the application up to this number are not repeated. None: no
            version.
        checkpoint: path of the query's checkpoint; "": not given.
        obstacle: why the producer's settings exclude transactions; "": they allow transactions.
    """

    mode: Mode = Mode.AUTO
    timeout_ms: int = TIMEOUT_MS
    app_id: str = ""
    version: int | None = None
    checkpoint: str = ""
    obstacle: str = ""


def parse_transactions(given: Mapping[str, str], producer: Mapping[str, Any]) -> TransactionSettings:
    """Parse options with lower-case names; ValueError names the valid form.

    Args:
        given: the options.
        producer: the settings of the producer that the options name.
    """
    text = given.get("transactional", Mode.AUTO).strip().lower()
    if text not in list(Mode):
        raise ValueError(f"option 'transactional' is {given['transactional']!r}; expected auto, true or false")
    obstacle = _obstacle(producer)
    if obstacle and text == Mode.TRUE:
        raise ValueError(f"option 'transactional' is true, and {obstacle}")
    app_id = given.get("txnappid", "").strip()
    if len(app_id) > _ID_MAX:
        raise ValueError(f"option 'txnAppId' has {len(app_id)} characters; expected {_ID_MAX} at most")
    return TransactionSettings(
        Mode(text), _timeout_ms(given), app_id, _version(given), given.get("checkpointlocation", "").strip(), obstacle
    )


def batch_identity(settings: TransactionSettings, fresh: str) -> tuple[str, int]:
    """The transactional id and the sequence of a batch write.

    Args:
        settings: options of the write.
        fresh: text that no other write has.

    Raises:
        ValueError: one of the options `txnAppId` and `txnVersion` is missing.
    """
    if bool(settings.app_id) != (settings.version is not None):
        missing = "txnVersion" if settings.app_id else "txnAppId"
        raise ValueError(f"option {missing!r} is missing: a batch write takes txnAppId and txnVersion together")
    if settings.version is not None:
        return settings.app_id, settings.version
    return f"{_PREFIX}{fresh}", _FIRST_SEQUENCE


def query_identity(settings: TransactionSettings, query_id: str) -> str:
    """The transactional id of a streaming query, by Spark's id of the query; its sequence is the number of the
    micro-batch.
    """
    return settings.app_id or f"{_PREFIX}{query_id}"


def check_streaming(settings: TransactionSettings) -> None:
    """Check the options of a streaming write; raises ValueError."""
    if settings.version is not None:
        raise ValueError("option 'txnVersion' is for batch writes: a streaming write has the number of its micro-batch")


def _obstacle(producer: Mapping[str, Any]) -> str:
    acks = producer.get("acks", "all")
    if acks != "all":
        return f"option 'tidemark.acks' is {acks}: a transaction needs acks=all"
    if producer.get("enable_idempotence") is False:
        return "option 'tidemark.enable.idempotence' is false: a transaction needs true"
    return ""


def _timeout_ms(given: Mapping[str, str]) -> int:
    names = [name for name in ("tidemark.transaction.timeout.ms", "kafka.transaction.timeout.ms") if name in given]
    if not names:
        return TIMEOUT_MS
    texts = {given[name].strip() for name in names}
    if len(texts) > 1:
        raise ValueError(f"options {' and '.join(map(repr, names))} contradict one another; remove one of them")
    text = texts.pop()
    timeout_ms = parse_whole(text)
    if timeout_ms is None or timeout_ms < _TIMEOUT_MS_MIN:
        raise ValueError(
            f"option {names[0]!r} is {text!r}; expected milliseconds, a whole number from {_TIMEOUT_MS_MIN}"
        )
    return timeout_ms


def _version(given: Mapping[str, str]) -> int | None:
    text = given.get("txnversion", "").strip()
    if not text:
        return None
    version = parse_whole(text)
    if version is None:
        raise ValueError(f"option 'txnVersion' is {text!r}; expected a whole number from 0 that rises with each write")
    return version

# SPDX-License-Identifier: Apache-2.0
"""The refusals of the transaction coordinator, and the checks of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemark.core.transactions.requests import TransactionSettings
from tidemark.core.transactions.state import NO_SEQUENCE, ProducerIdentity, TransactionMetadata
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, invalid_request

ID_CHARACTERS_MAX: Final = 249
_SHOWN_BROKERS_MAX: Final = 10


def check_transactional_id(transactional_id: str) -> None:
    """Raise INVALID_TRANSACTIONAL_ID unless the id is valid."""
    if not 0 < len(transactional_id) <= ID_CHARACTERS_MAX or not transactional_id.isprintable():
        raise TidemarkError(
            ErrorCode.INVALID_TRANSACTIONAL_ID,
            f"{transactional_id[:ID_CHARACTERS_MAX]!r} is not a transactional id: it needs 1 to {ID_CHARACTERS_MAX} "
            "printable characters",
        )


def check_versions(live: Mapping[BrokerId, BrokerRegistration]) -> None:
    """Raise INVALID_REQUEST while a live broker has a version without transactions (rule X10).

    A log that such a broker has written does not name its open transactions, even after the upgrade of the broker. A
    controller of a version without transactions sends no features of brokers.
    """
    older = sorted(broker for broker, found in live.items() if not found.has_transactions)
    if older:
        named = ", ".join(map(str, older[:_SHOWN_BROKERS_MAX])) + (" ..." if len(older) > _SHOWN_BROKERS_MAX else "")
        behind = f"broker {named}" if any(found.features for found in live.values()) else "the active controller"
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"transactions need a version of Tidemark that has them on every live broker: upgrade {behind} first",
            {"brokers": ",".join(map(str, older[:_SHOWN_BROKERS_MAX]))},
        )


def check_timeout(timeout_ms: int, settings: TransactionSettings) -> None:
    """Raise INVALID_TRANSACTION_TIMEOUT unless the timeout is in its range."""
    if not 0 < timeout_ms <= settings.timeout_ms_max:
        raise TidemarkError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"a transaction timeout of {timeout_ms} ms is not between 1 ms and {settings.timeout_ms_max} ms, which is "
            "transaction.max.timeout.ms of the broker",
            {"timeout_ms_max": str(settings.timeout_ms_max)},
        )


def check_sequence(sequence: int) -> None:
    """Raise INVALID_REQUEST unless the sequence is valid for CommitMembers."""
    if sequence < NO_SEQUENCE:
        raise invalid_request(f"sequence {sequence} is not valid: give 0 or more, or {NO_SEQUENCE} for no sequence")


def check_generation(transactional_id: str, generation: int, metadata: TransactionMetadata) -> None:
    """Raise PRODUCER_FENCED unless the generation is the present one (rule X16)."""
    if generation != metadata.generation:
        raise TidemarkError(
            ErrorCode.PRODUCER_FENCED,
            f"transactional id {transactional_id!r}: generation {generation} has ended, the present one is "
            f"{metadata.generation}: another producer of the id has started, or an operator aborted its transaction",
            {"generation": str(metadata.generation)},
        )


def fenced(transactional_id: str, producer: ProducerIdentity, metadata: TransactionMetadata | None) -> TidemarkError:
    """The error PRODUCER_FENCED; `metadata` is None for an id without state."""
    if metadata is None:
        why = "the coordinator has no such id: it expired, or never started; start a new producer"
    else:
        why = f"the present identity is {metadata.producer}; the last transaction was ended by: {metadata.end_reason}"
    return TidemarkError(ErrorCode.PRODUCER_FENCED, f"transactional id {transactional_id!r}, {producer}: {why}")


def concurrent(transactional_id: str, why: str = "its last transaction is still being completed") -> TidemarkError:
    """The error CONCURRENT_TRANSACTIONS: the sentence has `why`, and advises to retry the request."""
    return TidemarkError(
        ErrorCode.CONCURRENT_TRANSACTIONS, f"transactional id {transactional_id!r}: {why}; retry the request"
    )


def not_found(transactional_id: str) -> TidemarkError:
    """The error TRANSACTION_NOT_FOUND for an id that was never used or has expired."""
    return TidemarkError(
        ErrorCode.TRANSACTION_NOT_FOUND,
        f"there is no transactional id {transactional_id!r}: no producer of this id ever started, or the id expired; "
        "`tidemark transaction list` shows the ids",
    )


def invalid_state(transactional_id: str, why: str) -> TidemarkError:
    """The error INVALID_TXN_STATE, with `why` in its sentence."""
    return TidemarkError(ErrorCode.INVALID_TXN_STATE, f"transactional id {transactional_id!r}: {why}")


def abortable(transactional_id: str, why: str) -> TidemarkError:
    """The error TRANSACTION_ABORTABLE: the sentence has `why`, and advises to abort the transaction."""
    return TidemarkError(
        ErrorCode.TRANSACTION_ABORTABLE, f"transactional id {transactional_id!r}: {why}; abort the transaction"
    )

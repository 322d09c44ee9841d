# SPDX-License-Identifier: Apache-2.0
"""The error of a client that has asked every address for metadata, without a usable answer."""

from __future__ import annotations

from collections.abc import Container, Mapping

from tidemark.model import ErrorCode, TidemarkError


def no_answer(causes: Mapping[str, TidemarkError], other_services: Container[str]) -> TidemarkError:
    """Choose the error that helps most: a client retries a retriable one only.

    INVALID_CONFIG if every address is that of another service; the refusal of the token, if all brokers refuse it;
    otherwise BROKER_NOT_AVAILABLE, with the error of each address.

    Args:
        causes: the error of each address.
        other_services: addresses at which a service without BrokerService has answered, such as the admin service.
    """
    if all(address in other_services for address in causes):
        return TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"bootstrap: {', '.join(causes)} is not a broker: give the address of a broker, port 9192 by default",
        )
    errors = list(causes.values())
    if all(error.code is ErrorCode.AUTHENTICATION_FAILED and "reason" in error.metadata for error in errors):
        return errors[0]
    return none_answers(causes)


def none_answers(causes: Mapping[str, TidemarkError]) -> TidemarkError:
    """Make the error for the failure of every broker; `causes` by address."""
    said = {address: cause.message for address, cause in causes.items()}
    named = (cause if cause.startswith(address) else f"{address}: {cause}" for address, cause in said.items())
    return TidemarkError(
        ErrorCode.BROKER_NOT_AVAILABLE,
        f"no broker answers ({'; '.join(named)}): start one, or check the address and the network",
        said,
    )


def is_other_service(error: TidemarkError) -> bool:
    """Whether a service without BrokerService has answered."""
    return ": unimplemented: " in error.message

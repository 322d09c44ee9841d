# SPDX-License-Identifier: Apache-2.0
"""Errors of a failed connection: the address and the cause, without gRPC's details."""

from __future__ import annotations

import re

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from tidemark.client.metadata.no_answer import none_answers
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.errors import from_rpc_error


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
            "Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:1: Socket closed",
            "Socket closed; if the port speaks TLS, give a certificate that it accepts (docs/security.md)",
        ),
        (
            "errors resolving b:1: [field:hostname lookup error:address lookup failed for b:1: Domain name not found]",
            "Domain name not found",
        ),
        ("Stream removed", "Stream removed"),
    ],
)
def test_a_failed_connection_is_reported_by_its_cause(details: str, cause: str) -> None:
    broken = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details=details)
    error = from_rpc_error(broken, address="b:1")
    assert (error.code, error.message) == (ErrorCode.BROKER_NOT_AVAILABLE, f"b:1: unavailable: {cause}")


def test_a_call_that_a_service_does_not_have_names_an_older_version_and_a_wrong_address() -> None:
    unknown = AioRpcError(grpc.StatusCode.UNIMPLEMENTED, Metadata(), Metadata(), details="Method not found!")
    error = from_rpc_error(unknown, address="b:1")
    sentence = "the service at this address does not have this call: upgrade an older service, or correct the address"
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, f"b:1: unimplemented: {sentence}")


def test_a_connection_that_ends_during_a_write_is_no_internal_error_of_the_peer() -> None:
    ended = AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details="Internal error from Core")
    error = from_rpc_error(ended, address="b:1")
    sentence = "b:1: unavailable: the connection ended while a message was written"
    assert (error.code, error.message) == (ErrorCode.BROKER_NOT_AVAILABLE, sentence)
    of_peer = AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details="a defect")
    assert from_rpc_error(of_peer, address="b:1").code is ErrorCode.INTERNAL


def test_when_no_broker_answers_each_address_is_named_once_with_advice() -> None:
    causes = {"a:1": "a:1: unavailable: Connection refused", "b:1": "it has just started"}
    error = none_answers({at: TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, why) for at, why in causes.items()})
    assert error.message == (
        "no broker answers (a:1: unavailable: Connection refused; b:1: it has just started): "
        "start one, or check the address and the network"
    )


HANDSHAKE = "last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:"


@pytest.mark.parametrize(
    ("details", "sentence"),
    [
        (
            f"{HANDSHAKE}1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            r"not accepted \(certificate has expired\): renew it",
        ),
        (f"{HANDSHAKE}100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid", "does not speak TLS"),
        (
            "last error: UNKNOWN: ipv4:127.0.0.1:1: Custom verification check failed with error: UNAUTHENTICATED: "
            "Hostname Verification Check failed.",
            "has another name",
        ),
    ],
)
def test_a_failed_handshake_names_the_file_or_address_to_correct(details: str, sentence: str) -> None:
    error = from_rpc_error(
        AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details=details), address="b"
    )
    assert error.code is ErrorCode.AUTHENTICATION_FAILED
    assert not error.retriable
    assert re.search(sentence, error.message)

# SPDX-License-Identifier: Apache-2.0
"""Errors of a failed connection: the address and the cause, without gRPC's details."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from tidemark.client.metadata.cluster import none_answers
from tidemark.model import ErrorCode
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
            "Socket closed",
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


def test_when_no_broker_answers_each_address_is_named_once_with_advice() -> None:
    error = none_answers({"a:1": "a:1: unavailable: Connection refused", "b:1": "it has just started"})
    assert error.message == (
        "no broker answers (a:1: unavailable: Connection refused; b:1: it has just started): "
        "start one, or check the address and the network"
    )

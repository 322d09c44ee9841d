# SPDX-License-Identifier: Apache-2.0
"""The identity that a certificate proves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tidemark.core.security.principals import ANONYMOUS, Principal, Role
from tidemark.rpc.security.callers import caller_of

from tests.unit.rpc.pem import facts_of

BROKER = "tidemark://shop/broker/1"


def caller_with(*uris: str) -> Principal | None:
    return caller_of(SimpleNamespace(auth_context=lambda: facts_of(*uris)))


def test_one_uri_name_is_the_identity() -> None:
    assert caller_with(BROKER) == Principal(BROKER, "shop", Role.BROKER, "1")
    assert caller_with("spiffe://shop/alice") == Principal("User:spiffe://shop/alice")


@pytest.mark.parametrize(
    "uri", [f"{BROKER}\0/x", f"{BROKER}\0", f"{BROKER}\n", f"\0{BROKER}", "tidemark://shop/broker/\0001"]
)
def test_a_name_with_a_control_character_is_no_identity(uri: str) -> None:
    assert caller_with(uri) == ANONYMOUS


def test_no_name_and_two_names_are_no_identity() -> None:
    assert caller_with() == ANONYMOUS
    assert caller_with(BROKER, "spiffe://shop/alice") == ANONYMOUS


def test_a_caller_on_a_plain_text_port_has_no_certificate() -> None:
    assert caller_of(SimpleNamespace(auth_context=dict)) is None

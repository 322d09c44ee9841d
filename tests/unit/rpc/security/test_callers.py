# SPDX-License-Identifier: Apache-2.0
"""The identity that a certificate proves."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import ANONYMOUS, Principal, Role
from tidemark.core.security.subject_mapping import SubjectMapping
from tidemark.model import ErrorCode
from tidemark.rpc.security import callers
from tidemark.rpc.security.callers import CallerCheck, caller_of, check_id

from tests.refusals import raises_code
from tests.unit.rpc.security.pem import facts_of

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


def test_a_dns_name_that_looks_like_a_uri_is_no_identity() -> None:
    """`peer_identities()` of gRPC mixes names of all kinds."""
    facts = facts_of(dns=(BROKER,)) | {"subject_alternative_name": [BROKER.encode()]}
    assert caller_of(SimpleNamespace(auth_context=lambda: facts)) == ANONYMOUS


def subject_of(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """Parts from the least specific one to the most specific one."""
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])


def mapped(facts: dict[str, list[bytes]]) -> Principal | None:
    token = callers._CALL.set(callers._Call(Listener.MTLS, subjects=SubjectMapping("DEFAULT")))
    try:
        return caller_of(SimpleNamespace(auth_context=lambda: facts))
    finally:
        callers._CALL.reset(token)


ALICE = subject_of((NameOID.ORGANIZATION_NAME, "shop"), (NameOID.COMMON_NAME, "alice"))


def test_a_subject_names_a_user_only_by_rules_and_only_without_a_uri_name() -> None:
    assert caller_of(SimpleNamespace(auth_context=lambda: facts_of(subject=ALICE))) == ANONYMOUS
    assert mapped(facts_of(subject=ALICE)) == Principal("User:CN=alice,O=shop")
    assert mapped(facts_of(subject=ALICE, dns=("alice.example.com",))) == Principal("User:CN=alice,O=shop")
    assert mapped(facts_of("spiffe://shop/bob", subject=ALICE)) == Principal("User:spiffe://shop/bob")
    assert mapped(facts_of("bob", subject=ALICE)) == ANONYMOUS
    assert mapped(facts_of(BROKER, "spiffe://shop/bob", subject=ALICE)) == ANONYMOUS


@pytest.mark.parametrize(
    "attributes",
    [
        [(NameOID.COMMON_NAME, "alice,OU=admins")],
        [(NameOID.COMMON_NAME, "alice\\,OU=admins")],
        [(NameOID.COMMON_NAME, 'alice"')],
        [(NameOID.COMMON_NAME, "alice+OU")],
        [(NameOID.COMMON_NAME, "#alice")],
        [(NameOID.COMMON_NAME, " alice")],
        [(NameOID.COMMON_NAME, "alice\0")],
        [(NameOID.COMMON_NAME, "alice\n")],
        [(NameOID.COMMON_NAME, "ali\u202ece")],
        [(NameOID.ORGANIZATIONAL_UNIT_NAME, "x,CN=alice")],
        [(NameOID.ORGANIZATIONAL_UNIT_NAME, "cn=root"), (NameOID.COMMON_NAME, "alice")],
        [(NameOID.COMMON_NAME, "bob"), (NameOID.COMMON_NAME, "alice")],
        [(NameOID.COMMON_NAME, "alice"), *[(NameOID.ORGANIZATIONAL_UNIT_NAME, "x" * 60)] * 20],
        [*[(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")] * 20, (NameOID.COMMON_NAME, "alice")],
        [(NameOID.ORGANIZATION_NAME, "shop")],
    ],
)
def test_a_subject_that_could_be_misread_names_no_user(attributes: list[tuple[x509.ObjectIdentifier, str]]) -> None:
    assert mapped(facts_of(subject=subject_of(*attributes))) == ANONYMOUS


def test_a_subject_with_two_values_in_one_part_names_no_user() -> None:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, "alice"), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "shop")]
    subject = x509.Name([x509.RelativeDistinguishedName(parts)])
    assert mapped(facts_of(subject=subject)) == ANONYMOUS


def test_a_caller_on_a_plain_text_port_has_no_certificate() -> None:
    assert caller_of(SimpleNamespace(auth_context=dict)) is None


class Context:
    """A call with a certificate; `abort` ends it as gRPC does."""

    def __init__(self, uri: str) -> None:
        self.auth_context = lambda: facts_of(uri)

    def peer(self) -> str:
        return "ipv4:10.0.0.9:1234"

    async def abort(self, *_: Any) -> None:
        raise PermissionError

    abort_with_status = abort


def denials(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    lines: list[Any] = [one for one in caplog.records if one.name == "tidemark.audit"]
    return [(line.principal, line.host, line.rule) for line in lines]


async def test_a_forged_internal_call_is_refused_with_a_line_of_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = "/tidemark.v1.BrokerControlService/UpdateMetadata"

    async def continuation(_: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(None)

    handler: Any = await CallerCheck("shop").intercept_service(continuation, SimpleNamespace(method=path))
    with pytest.raises(PermissionError):
        await handler.unary_unary(None, Context("spiffe://shop/mallory"))
    ((principal, host, rule),) = denials(caplog)
    assert (principal, host) == ("User:spiffe://shop/mallory", "10.0.0.9")
    assert rule.endswith(f"may not call {path}: only a controller of cluster 'shop' may")


def test_a_broker_under_another_id_is_refused_with_a_line_of_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    check_id(Context(BROKER), 1)
    assert not denials(caplog)
    with raises_code(ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        check_id(Context(BROKER), 2)
    assert denials(caplog) == [(BROKER, "10.0.0.9", f"{BROKER} may not act as broker 2")]

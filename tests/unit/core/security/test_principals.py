# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.security.principals import ANONYMOUS, Role, can_be_a_user, principal_of, service_uri


def test_a_service_is_known_by_its_uri() -> None:
    found = principal_of([service_uri("shop", Role.BROKER, "3")])
    assert (found.name, found.cluster, found.role, found.service) == ("tidemark://shop/broker/3", "shop", "broker", "3")


@pytest.mark.parametrize("uris", [[], ["tidemark://shop/broker/3", "tidemark://shop/broker/4"]])
def test_no_uri_and_two_uris_are_anonymous(uris: list[str]) -> None:
    assert principal_of(uris) is ANONYMOUS


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://example.org/alice",
        "tidemark://shop/user/alice",
        "tidemark://shop/broker/3/4",
        "tidemark://shop/broker/",
        "tidemark://shop/Broker/3",
        "TIDEMARK://shop/broker/3",
        "tidemark:///broker/3",
        "tidemark://shop/broker/3?x",
    ],
)
def test_any_other_uri_is_a_user(uri: str) -> None:
    found = principal_of([uri])
    assert found.role is None
    assert found.name == f"User:{uri}"


@pytest.mark.parametrize(
    "uri",
    [
        "token:alice",
        "token:x://y",
        "system:serviceaccount:shop:producer",
        "oidc:corp:alice",
        "oidc:corp:https://alice",
        "ANONYMOUS",
        "",
        "alice",
        "://alice",
        "tidemark://",
        "tidemark://shop/broker/3\n",
        " tidemark://shop/broker/3",
        "x://a b",
    ],
)
def test_a_name_that_could_pose_as_another_kind_of_identity_is_anonymous(uri: str) -> None:
    assert principal_of([uri]) is ANONYMOUS


@given(st.text().map(lambda text: f"x://{text}") | st.text())
def test_no_certificate_has_the_name_of_a_token(uri: str) -> None:
    name = principal_of([uri]).name
    assert not name.startswith(("User:token:", "User:oidc:", "User:system:", "User:CN="))


@given(st.text())
def test_a_user_and_a_service_never_share_a_name(uri: str) -> None:
    found = principal_of([uri])
    if found is ANONYMOUS:
        return
    assert (found.role is None) == found.name.startswith("User:")
    assert found.name in (uri, f"User:{uri}")


@pytest.mark.parametrize(("cluster", "name"), [("Shop", "3"), ("", "3"), ("shop", ""), ("shop", "a/b"), ("a/b", "3")])
def test_a_name_that_could_not_be_read_back_is_refused(cluster: str, name: str) -> None:
    with pytest.raises(ValueError, match="not a name of a service"):
        service_uri(cluster, Role.ADMIN, name)


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("User:*", True),
        ("User:ANONYMOUS", True),
        ("User:tidemark://shop/user/alice", True),
        ("User:token:alice", True),
        ("User:oidc:corp:alice@example.com", True),
        ("User:system:serviceaccount:streams:job", True),
        ("User:alice", False),
        ("User:CN=alice", True),
        ("User:CN=", False),
        ("User:oidc:alice", False),
        ("User:system:serviceaccount:streams", False),
        ("tidemark://shop/broker/1", False),
        ("User:", False),
    ],
)
def test_a_rule_for_an_identity_that_no_caller_has_is_known(name: str, possible: bool) -> None:
    assert can_be_a_user(name) is possible

# SPDX-License-Identifier: Apache-2.0
"""Rules that map the subjects of certificates to users, with Kafka's syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.security.principals import ANONYMOUS, can_be_a_user
from tidemark.core.security.subject_mapping import SubjectMapping

KAFKAS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)
"""The example of Kafka's documentation."""


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("OU=Robots,CN=R2.D2", "r2.d2"),
    ],
)
def test_the_example_of_kafkas_documentation_gives_kafkas_names(subject: str, name: str) -> None:
    assert SubjectMapping(KAFKAS).principal_of(subject).name == f"User:CN={name}"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=alice,O=shop", "User:CN=alice,O=shop"),
        ("DEFAULT", "O=shop,CN=alice", "User:ANONYMOUS"),
        ("RULE:^CN=([a-z]+)$/$1/U", "CN=alice", "User:CN=ALICE"),
        ("RULE:^CN=([a-z]+)$/$1/", "CN=alice,O=shop", "User:ANONYMOUS"),
        ("RULE:^CN=([a-z]+)$/$1/", "xCN=alice", "User:ANONYMOUS"),
        (" RULE:^CN=(a)\\/b$/$1\\/c/ , DEFAULT", "CN=a/b", "User:CN=a/c"),
        (r"RULE:^CN=(.*)$/\1$1/", "CN=alice", r"User:CN=\1alice"),
        ("RULE:^CN=(.*)$/CN=$1/", "CN=alice", "User:CN=CN=alice"),
        ("RULE:^CN=(.*)$//", "CN=alice", "User:ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/L, DEFAULT", "CN=\N{KELVIN SIGN}afka", "User:ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/U", "CN=ro\N{LATIN SMALL LETTER LONG S}t", "User:ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/U", "CN=wei\N{LATIN SMALL LETTER SHARP S}", "User:ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/L", "CN=\u00c9MILE", "User:CN=\u00e9mile"),
        ("RULE:^CN=(.*)$/$1/", "", "User:ANONYMOUS"),
        ("RULE:^CN=(.*)$/$1/", "CN=" + "x" * 256, "User:ANONYMOUS"),
    ],
)
def test_the_first_rule_that_matches_the_whole_subject_names_the_user(rules: str, subject: str, name: str) -> None:
    assert SubjectMapping(rules).principal_of(subject).name == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "default",
        "RULE:",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:(/b/",
        "RULE:a/$1/",
        "DEFAULT DEFAULT",
        "RULE:a/b/L DEFAULT",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected RULE|regular expression|no group"):
        SubjectMapping(text)


ADVERSARIAL = st.sampled_from(
    ["token:alice", "oidc:corp:alice", "system:serviceaccount:shop:job", "tidemark://shop/broker/1", "ANONYMOUS", "*"]
)


@given(
    st.text() | ADVERSARIAL.map("CN={}".format) | ADVERSARIAL, st.sampled_from([KAFKAS, "RULE:(?s)^.*$/$0/", "DEFAULT"])
)
def test_no_subject_poses_as_another_kind_of_identity(subject: str, rules: str) -> None:
    found = SubjectMapping(rules).principal_of(subject)
    if found is ANONYMOUS:
        return
    assert found.name.startswith("User:CN=")
    assert found.name.isprintable()
    assert (found.role, found.cluster) == (None, "")
    assert can_be_a_user(found.name)

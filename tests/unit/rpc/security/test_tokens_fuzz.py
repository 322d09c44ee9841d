# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens of any form."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.tokens import Tokens

from tests.refusals import raises_code
from tests.unit.rpc.security.test_tokens import KEYS, by_hand, claims, issuers_of


@pytest.fixture
def verifier(tmp_path: Path) -> Tokens:
    return Tokens(issuers=issuers_of(tmp_path))


PART = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_=", max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CLAIM = st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "jti"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=200)
    | st.tuples(PART, PART, PART).map(".".join)
    | st.builds(by_hand, st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), VALUES),
                st.dictionaries(CLAIM, VALUES).map(lambda found: {**claims(), **found}), st.binary(max_size=80))
)  # fmt: skip
async def test_no_made_up_token_is_accepted_or_fails_otherwise(verifier: Tokens, token: str) -> None:
    with raises_code(ErrorCode.AUTHENTICATION_FAILED) as refused:
        await verifier.verify(token)
    assert refused.value.message.isprintable()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(CLAIM, VALUES, min_size=1))
async def test_signed_tokens_with_wild_claims_are_refused_or_have_an_end(
    verifier: Tokens, changed: dict[str, Any]
) -> None:
    header = {"alg": "ES256", "kid": "ES256"}
    bare = by_hand(header, claims(**changed), b"").rpartition(".")[0]
    algorithm: Any = jwt.get_algorithm_by_name("ES256")
    signature = base64.urlsafe_b64encode(algorithm.sign(bare.encode(), KEYS["ES256"])).rstrip(b"=").decode()
    (found,) = await asyncio.gather(verifier.verify(f"{bare}.{signature}"), return_exceptions=True)
    if isinstance(found, BaseException):
        assert isinstance(found, TidemarkError), found
        assert found.code is ErrorCode.AUTHENTICATION_FAILED
        return
    assert found.principal.name.startswith("User:oidc:corp:")
    assert found.expires_s is not None
    assert found.expires_s > time.time()

# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens: accepted ones give an identity, others an error that names the fault and never the token."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import io
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security import changed_file, jwks, token_file
from tidemark.rpc.security.jwks import KeySet
from tidemark.rpc.security.jwts import IssuersFile
from tidemark.rpc.security.tokens import TOKEN_BYTES_MAX, StaticTokens, Tokens

from tests.refusals import raises_code

ISSUER = "https://login.example.com"
KEYS: Mapping[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
OTHER = ec.generate_private_key(ec.SECP256R1())


def public(kid: str, key: Any) -> dict[str, Any]:
    kinds = ((rsa.RSAPrivateKey, "RS256"), (ec.EllipticCurvePrivateKey, "ES256"), (object, "EdDSA"))
    algorithm = next(name for kind, name in kinds if isinstance(key, kind))
    made: Any = jwt.get_algorithm_by_name(algorithm)
    return {**json.loads(made.to_jwk(key.public_key())), "kid": kid}


def key_set(path: Path, keys: Mapping[str, Any]) -> Path:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": [public(kid, key) for kid, key in keys.items()]}))
    new.rename(path)
    return path


def claims(**changed: Any) -> dict[str, Any]:
    now_s = int(time.time())
    made = {"iss": ISSUER, "aud": "tidemark", "sub": "alice", "exp": now_s + 3600, "nbf": now_s - 60, **changed}
    return {name: value for name, value in made.items() if value is not None}


def signed(content: Mapping[str, Any], kid: str = "ES256", key: Any = None, algorithm: str = "") -> str:
    return jwt.encode(dict(content), key or KEYS[kid], algorithm or kid, headers={"kid": kid})


def by_hand(header: Mapping[str, Any], content: Mapping[str, Any], signature: bytes) -> str:
    """A token that PyJWT refuses to write."""
    parts = (json.dumps(header).encode(), json.dumps(content).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def issuers_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def issuers_of(directory: Path) -> IssuersFile:
    keys = key_set(directory / "keys.json", KEYS)
    text = f"""
    corp: {{issuer: "{ISSUER}", audience: tidemark, jwks: "{keys}"}}
    kube: {{issuer: "https://kubernetes", audience: [other, tidemark], jwks: "{keys}", kubernetes: true}}
    """
    return IssuersFile(issuers_file(directory / "issuers.yaml", text), clock_skew_s=5)


@pytest.fixture
def issuers(tmp_path: Path) -> IssuersFile:
    return issuers_of(tmp_path)


@pytest.fixture
def verifier(issuers: IssuersFile) -> Tokens:
    return Tokens(issuers=issuers)


async def refusal(verifier: Tokens, token: str) -> TidemarkError:
    with pytest.raises(TidemarkError) as refused:
        await verifier.verify(token)
    error = refused.value
    assert error.code is ErrorCode.AUTHENTICATION_FAILED
    assert not token or (token not in str(error) and token not in str(error.metadata))
    return error


@pytest.mark.parametrize("kid", KEYS)
async def test_a_signed_token_is_the_issuers_user(verifier: Tokens, kid: str) -> None:
    found = await verifier.verify(signed(claims(), kid))
    assert found.principal.name == "User:oidc:corp:alice"
    assert found.expires_s == pytest.approx(time.time() + 3605, abs=60)


async def test_a_token_of_kubernetes_is_its_service_account(verifier: Tokens) -> None:
    content = claims(iss="https://kubernetes", sub="system:serviceaccount:shop:producer", aud=["x", "tidemark"])
    assert (await verifier.verify(signed(content))).principal.name == "User:system:serviceaccount:shop:producer"
    error = await refusal(verifier, signed({**content, "sub": "alice"}))
    assert error.metadata["reason"] == "subject"


async def test_only_the_issuer_that_is_kubernetes_makes_service_accounts(verifier: Tokens) -> None:
    found = await verifier.verify(signed(claims(sub="system:serviceaccount:shop:producer")))
    assert found.principal.name == "User:oidc:corp:system:serviceaccount:shop:producer"


PUBLIC_PEM = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def hmac_with_the_public_key() -> str:
    bare = by_hand({"alg": "HS256", "kid": "RS256"}, claims(), b"").rpartition(".")[0]
    signature = hmac.digest(PUBLIC_PEM, bare.encode(), hashlib.sha256)
    return f"{bare}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def bad() -> Mapping[str, tuple[str, str, str]]:
    """Token, reason and a part of the sentence; with times of now, since collection may be many minutes ago."""
    return {
        "expired": (signed(claims(exp=int(time.time()) - 10)), "expired", "has expired"),
        "not yet valid": (signed(claims(nbf=int(time.time()) + 600)), "not_yet_valid", "clock"),
        "of another audience": (signed(claims(aud="kafka")), "audience", "expected tidemark"),
        "without an audience": (signed(claims(aud=None)), "claim", "aud"),
        "without an end": (signed(claims(exp=None)), "claim", "exp"),
        "without a subject": (signed(claims(sub=None)), "claim", "sub"),
        "with an endless end": (
            by_hand({"alg": "ES256", "kid": "ES256"}, claims(exp=float("inf")), b"x"),
            "signature",
            "",
        ),
        "with an end as text": (signed(claims(exp="9999999999")), "malformed", "exp is not a time"),
        "with an end beyond all dates": (signed(claims(exp=1e300)), "malformed", "exp is not a time"),
        "of another issuer": (signed(claims(iss="https://evil")), "issuer", "'https://evil'"),
        "of no issuer": (signed(claims(iss=None)), "issuer", "not accepted"),
        "unsigned": (by_hand({"alg": "none", "kid": "ES256"}, claims(), b""), "algorithm", "expected ES256"),
        "signed with the public key": (hmac_with_the_public_key(), "algorithm", "expected RS256"),
        "signed by an unknown key": (signed(claims(), "ES999", OTHER, "ES256"), "key", "'ES999'"),
        "signed by another key": (signed(claims(), "ES256", OTHER), "signature", "corp"),
        "of an unreadable subject": (signed(claims(sub="alice\n")), "subject", "'alice"),
        "1 MB long": (signed(claims(x="y" * 1_000_000)), "too_long", str(TOKEN_BYTES_MAX)),
        "garbage": ("a.b.c", "malformed", "not a JSON web token"),
        "with two dots only": ("..", "malformed", ""),
        "no token": ("hello", "unknown", "unknown"),
        "empty": ("", "missing", "token_file"),
    }


@pytest.mark.parametrize("case", bad())
async def test_a_bad_token_is_refused_with_its_fault(verifier: Tokens, case: str) -> None:
    token, reason, sentence = bad()[case]
    error = await refusal(verifier, token)
    assert error.metadata["reason"] == reason, error
    assert sentence in error.message
    assert error.retriable == (reason == "expired")


async def test_a_verified_token_is_known_until_it_expires(
    issuers: IssuersFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    verifier = Tokens(issuers=issuers, now_s=lambda: now_s)
    token = signed(claims())
    await verifier.verify(token)
    monkeypatch.setattr(IssuersFile, "verify", lambda *_: pytest.fail("verified again"))
    await verifier.verify(token)
    now_s += 3700
    with pytest.raises(pytest.fail.Exception, match="verified again"):
        await verifier.verify(token)


async def test_a_withdrawn_key_no_longer_verifies_tokens_seen_before(issuers: IssuersFile, tmp_path: Path) -> None:
    verifier = Tokens(issuers=issuers)
    seen, unseen = signed(claims()), signed(claims(sub="bob"))
    await verifier.verify(seen)
    key_set(tmp_path / "keys.json", {"RS256": KEYS["RS256"]})
    assert (await refusal(verifier, unseen)).metadata["reason"] == "key"
    assert (await refusal(verifier, seen)).metadata["reason"] == "key"
    await verifier.verify(signed(claims(), "RS256"))


async def test_one_verification_is_trusted_for_an_hour_at_most(issuers: IssuersFile, tmp_path: Path) -> None:
    verifier = Tokens(issuers=issuers)
    token = signed(claims(exp=int(time.time()) + 10 * 365 * 86400))
    for _ in range(2):
        found = await verifier.verify(token)
        assert found.expires_s == pytest.approx(time.time() + 3600, abs=60)


async def test_keys_of_an_address_unused_for_long_are_read_before_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, listed = 0.0, {"a": KEYS["ES256"]}
    monkeypatch.setattr(
        KeySet, "_fetch", lambda _: json.dumps({"keys": [public(*one) for one in listed.items()]}).encode()
    )
    keys = KeySet("https://login.example.com/keys", now_s=lambda: now_s)
    assert await keys.find("a")
    listed = {"b": OTHER}
    now_s += 600
    assert not any(await asyncio.gather(keys.find("a"), keys.find("a")))
    assert await keys.find("b")


async def test_rotated_keys_are_found_and_the_last_good_ones_hold(tmp_path: Path) -> None:
    path = key_set(tmp_path / "keys.json", {"old": KEYS["ES256"]})
    keys = KeySet(str(path))
    assert await keys.find("old")
    key_set(path, {"new": OTHER})
    assert await keys.find("new")
    assert not await keys.find("old")
    path.write_text('{"keys": ')
    for _ in range(2):
        assert not await keys.find("made up")  # waits for the file
        assert await keys.find("new")
        path.unlink(missing_ok=True)
    assert keys.failures == 2


async def test_an_unknown_key_asks_a_silent_issuer_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, fetched = 0.0, []
    content = json.dumps({"keys": [public("a", KEYS["ES256"])]}).encode()

    def fetch(_: KeySet) -> bytes:
        fetched.append(now_s)
        if len(fetched) > 2:
            raise OSError("silent")
        return content

    monkeypatch.setattr(KeySet, "_fetch", fetch)
    keys = KeySet("https://login.example.com/keys", now_s=lambda: now_s)
    assert await keys.find("a")
    for _ in range(50):
        assert not await keys.find("made up")
    assert len(fetched) == 1
    now_s += jwks.UNKNOWN_KEY_S
    for _ in range(50):
        assert not await keys.find("made up")
    assert len(fetched) == 2
    now_s += jwks.REFRESH_S
    for _ in range(3):
        assert await keys.find("a"), "the last good keys hold"
    assert not await keys.find("made up")
    assert len(fetched) == 3


@pytest.mark.parametrize("fault", [http.client.IncompleteRead(b""), http.client.BadStatusLine("x"), OSError("gone")])
async def test_a_broken_answer_with_keys_is_no_fault_of_the_token(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fetch(_: KeySet) -> bytes:
        raise fault

    monkeypatch.setattr(KeySet, "_fetch", fetch)
    keys = KeySet("https://login.example.com/keys")
    assert not await keys.find("a")
    assert keys.failures == 1


async def test_keys_are_asked_for_in_the_type_of_an_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server of Kubernetes 1.34 answered 406 Not Acceptable to application/json alone."""

    def answer(_: object, request: urllib.request.Request, timeout: float) -> Any:
        assert timeout > 0
        accepted = [one.strip() for one in str(request.get_header("Accept")).split(",")]
        if "application/jwk-set+json" not in accepted:
            raise urllib.error.HTTPError(request.full_url, 406, "Not Acceptable", http.client.HTTPMessage(), None)
        return Answer(json.dumps({"keys": [public("a", OTHER)]}).encode())

    class Answer(io.BytesIO):
        length = 0

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", answer)
    keys = KeySet("https://kubernetes.default.svc/openid/v1/jwks")
    assert [one.kid for one in await keys.find("a")] == ["a"]
    assert keys.failures == 0


@pytest.mark.parametrize("content", ["", "\n", "no certificate", "\u00fc"])
def test_a_file_of_authorities_without_a_certificate_trusts_no_others(tmp_path: Path, content: str) -> None:
    """Regression: with an empty file, as during a replacement, the authorities of the system were trusted."""
    file = tmp_path / "ca.crt"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ssl.SSLError):
        KeySet("https://127.0.0.1:1/keys", ca_file=str(file))._fetch()


async def test_a_read_of_keys_that_lasts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "_FETCH_S", 0.1)
    done = threading.Event()
    monkeypatch.setattr(KeySet, "_fetch", lambda _: str(done.wait(20)).encode())
    keys = KeySet("https://login.example.com/keys")
    try:
        async with asyncio.timeout(10):
            assert not await keys.find("a")
    finally:
        done.set()
    assert keys.failures == 1


async def test_keys_without_an_id_are_all_tried(issuers: IssuersFile, tmp_path: Path) -> None:
    listed = [public("", key) for key in (OTHER, KEYS["RS256"], KEYS["ES256"])]
    for one in listed:
        del one["kid"]
    (tmp_path / "keys.new").write_text(json.dumps({"keys": listed}))
    (tmp_path / "keys.new").rename(tmp_path / "keys.json")
    verifier = Tokens(issuers=issuers)
    for key in (OTHER, KEYS["ES256"]):
        await verifier.verify(jwt.encode(claims(), key, "ES256"))
    stranger = ec.generate_private_key(ec.SECP256R1())
    assert (await refusal(verifier, jwt.encode(claims(), stranger, "ES256"))).metadata["reason"] == "signature"
    assert (await refusal(verifier, jwt.encode(claims(), KEYS["EdDSA"], "EdDSA"))).metadata["reason"] == "algorithm"


def test_keys_that_could_be_misused_are_passed_over() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"}
    weak = public("weak", rsa.generate_private_key(public_exponent=65537, key_size=1024))
    for_encryption = {**public("enc", OTHER), "use": "enc"}
    of_another = {**public("hs", OTHER), "alg": "HS256"}
    listed = [secret, weak, for_encryption, of_another, "text", {"kty": "EC"}, public("good", KEYS["ES256"])]
    found = jwks.parse_keys(json.dumps({"keys": listed}).encode())
    assert {key.kid: key.algorithms for key in found} == {"good": ("ES256",)}
    with pytest.raises(ValueError, match="no public key"):
        jwks.parse_keys(json.dumps({"keys": [secret]}).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff", b"[" * 100_000])
def test_other_content_is_no_key_set(content: bytes) -> None:
    with pytest.raises(ValueError, match="JWKS"):
        jwks.parse_keys(content)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "mapping of alias"),
        ("a: [", "is not YAML"),
        ("corp: {issuer: 2001-99-99}", "is not YAML"),
        ("[" * 1_000, "is not YAML"),
        ("corp: {audience: x}\ncorp: {audience: y}", "corp is given twice, in lines 1 and 2"),
        ("corp: {issuer: x, issuer: y}", "issuer is given twice"),
        ("Corp: {}", "the alias is 'Corp'"),
        ("corp: {issuer: x, jwks: y}", "needs an audience"),
        ("corp: {audience: x, jwks: y}", "needs issuer"),
        ("corp: {issuer: x, audience: y}", "needs jwks"),
        ("corp: {issuer: x, audience: y, jwks: z, secret: s}", "corp may have"),
        ("corp: {issuer: x, audience: y, jwks: 'http://z'}", "with https"),
        ("corp: {issuer: x, audience: y, jwks: z, kubernetes: 'yes'}", "neither true nor false"),
        ("{a: {issuer: x, audience: y, jwks: z}, b: {issuer: x, audience: y, jwks: z}}", "the same issuer"),
        (
            "{a: {issuer: x, audience: y, jwks: z, kubernetes: true}, b: {issuer: w, audience: y, jwks: z, "
            "kubernetes: true}}",
            "share names",
        ),
    ],
)
def test_a_wrong_file_of_issuers_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        IssuersFile(issuers_file(tmp_path / "issuers.yaml", text), 0)
    assert sentence in refused.value.message


def test_a_change_of_the_file_keeps_its_mode_and_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that reads the file by its group must see that a token is removed."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    assert given == []
    path.chmod(0o640)
    before = path.stat()
    token_file.create(path, "bob")
    assert path.stat().st_mode & 0o777 == 0o640
    token_file.remove(path, "alice")
    assert path.stat().st_mode & 0o777 == 0o640
    assert given == [(before.st_uid, before.st_gid)] * 2


@pytest.mark.parametrize("group_permitted", [True, False])
def test_a_file_whose_group_cannot_be_kept_stays_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_permitted: bool
) -> None:
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    text = path.read_text()

    def refuse(_: int, user: int, group: int) -> None:
        assert group == path.stat().st_gid
        if not (group_permitted and user == -1):
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    if group_permitted:
        token_file.remove(path, "alice")
        assert path.read_text() == ""
    else:
        with pytest.raises(TidemarkError, match=r"tokens is unchanged.*Operation not permitted"):
            token_file.remove(path, "alice")
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


async def test_issuers_follow_their_file_and_keep_the_keys_of_those_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_file, "_CHECK_S", 0.0)
    keys = key_set(tmp_path / "keys.json", KEYS)
    corp = f'corp: {{issuer: "{ISSUER}", audience: tidemark, jwks: "{keys}"}}\n'
    partner = f'partner: {{issuer: "https://partner", audience: tidemark, jwks: "{keys}"}}\n'
    file = tmp_path / "issuers.yaml"
    verifier = Tokens(issuers=IssuersFile(issuers_file(file, corp), 0))
    theirs, ours = signed(claims(iss="https://partner")), signed(claims())
    assert (await refusal(verifier, theirs)).metadata["reason"] == "issuer"
    assert (await verifier.verify(ours)).principal.name == "User:oidc:corp:alice"
    issuers_file(file, corp + partner)
    assert (await verifier.verify(theirs)).principal.name == "User:oidc:partner:alice"
    os.unlink(keys)
    issuers_file(file, corp)
    assert (await refusal(verifier, theirs)).metadata["reason"] == "issuer", "its token was verified before"
    assert (await verifier.verify(ours)).principal.name == "User:oidc:corp:alice"
    for broken in ("corp: [", "corp: {issuer: x}", ""):
        issuers_file(file, broken)
        assert (await verifier.verify(ours)).principal.name == "User:oidc:corp:alice"


async def test_static_tokens_follow_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_file, "_CHECK_S", 0.0)
    path = tmp_path / "tokens"
    alice = token_file.create(path, "alice")
    assert alice not in path.read_text()
    assert os.stat(path).st_mode & 0o777 == 0o600
    static = StaticTokens(str(path))
    verifier = Tokens(static)
    assert (await verifier.verify(alice)).principal.name == "User:token:alice"
    bob = token_file.create(path, "bob")
    assert bob != alice
    assert (await verifier.verify(bob)).principal.name == "User:token:bob"
    token_file.remove(path, "alice")
    assert (await refusal(verifier, alice)).metadata["reason"] == "unknown"
    path.write_text("no hash")
    assert (await verifier.verify(bob)).principal.name == "User:token:bob"
    path.unlink()
    assert (await verifier.verify(bob)).principal.name == "User:token:bob"


async def test_a_new_token_is_accepted_at_once(tmp_path: Path) -> None:
    """An unknown one is looked up in the file, however recently the file was read."""
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    verifier = Tokens(StaticTokens(str(path)))
    assert (await verifier.verify(token_file.create(path, "bob"))).principal.name == "User:token:bob"


def test_commands_that_change_the_file_at_once_lose_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    (tmp_path / "tokens.new").touch()
    with pytest.raises(TidemarkError, match="another command is changing"):
        token_file.create(path, "bob")
    assert list(token_file.read(path)) == ["alice"]


def test_a_command_reads_the_file_after_the_change_of_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    token_file.create(path, "alice")
    read, refused = token_file.read, []

    def read_slowly(of: Path) -> Mapping[str, str]:
        found = read(of)
        monkeypatch.setattr(token_file, "read", read)
        try:
            token_file.create(path, "bob")
        except TidemarkError as error:
            refused.append(error.message)
        return found

    monkeypatch.setattr(token_file, "read", read_slowly)
    token_file.create(path, "carol")
    assert list(token_file.read(path)) == ["alice", *([] if refused else ["bob"]), "carol"]


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    """As /dev/zero, which would fill the memory."""
    path = tmp_path / "tokens"
    path.write_text("#" * (17 << 20))
    with raises_code(ErrorCode.INVALID_CONFIG, "tokens.file is .*tokens, which cannot .*: it has more than 16 MiB"):
        token_file.read(path)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a\n", "-a", "a" * 101, "../a"])
def test_a_name_that_could_be_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TidemarkError, match="the name is"):
        token_file.create(tmp_path / "tokens", name)


def test_a_device_is_not_replaced_by_a_file_of_tokens(tmp_path: Path) -> None:
    """Root could replace /dev/null for all processes of the machine."""
    path = tmp_path / "tokens"
    path.symlink_to(os.devnull)
    with raises_code(ErrorCode.INVALID_REQUEST, "is not a regular file"):
        token_file.create(path, "alice")
    with raises_code(ErrorCode.INVALID_REQUEST, "is not a regular file"):
        token_file.remove(path, "alice")
    assert path.is_symlink()


def test_a_change_through_a_link_changes_the_file_that_services_read(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "tokens")
    for name in ("alice", "bob"):
        token_file.create(path, name)
    token_file.remove(path, "bob")
    assert path.is_symlink()
    assert list(token_file.read(tmp_path / "tokens")) == ["alice"]


def test_a_file_that_does_not_exist_has_no_token_to_remove(tmp_path: Path) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG, "which cannot be read: No such file or directory"):
        token_file.remove(tmp_path / "tokens", "bob")
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_used_once(tmp_path: Path) -> None:
    token_file.create(tmp_path / "tokens", "alice")
    with pytest.raises(TidemarkError, match="remove it first"):
        token_file.create(tmp_path / "tokens", "alice")
    with pytest.raises(TidemarkError, match="no token of the name bob"):
        token_file.remove(tmp_path / "tokens", "bob")


@pytest.mark.parametrize(
    "line", ["alice", "alice: secret", f"alice: {'A' * 64}", f"alice: {'a' * 64}\nalice: {'b' * 64}"]
)
def test_a_line_of_another_form_is_refused_and_not_repeated(line: str) -> None:
    with raises_code(ErrorCode.INVALID_CONFIG) as refused:
        token_file.parse(f"# tokens\n\n{line}\n", "tokens")
    assert "secret" not in refused.value.message

# SPDX-License-Identifier: Apache-2.0
"""Verifies JSON web tokens of configured issuers. PyJWT checks the signature; the key decides on its algorithms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt

from tidemark.core.security.principals import ALIAS, Principal, issuer_principal, service_account_principal
from tidemark.errors import TOKEN_EXPIRED
from tidemark.model import TidemarkError, invalid_config
from tidemark.rpc.security.callers import Verified, refused
from tidemark.rpc.security.changed_file import ChangedFile
from tidemark.rpc.security.jwks import KeySet, PublicKey
from tidemark.runtime.configuration.settings import read_yaml

_FIELDS: Final = frozenset({"issuer", "audience", "jwks", "ca.file", "token.file", "kubernetes"})
_REQUIRED: Final = ("exp", "iss", "aud", "sub")
_SHOWN: Final = 80
_SETTING: Final = "tokens.issuers.file"
_END_S_MAX: Final = 253_402_300_799
"""The end of the year 9999, as seconds since 1970."""


class Issuer(NamedTuple):
    """An issuer whose tokens are accepted.

    Attributes:
        alias: its short name, in identities.
        issuer: the claim `iss` of its tokens.
        audiences: accepted values of the claim `aud`.
        keys: its public keys.
        kubernetes: whether its subjects are service accounts of Kubernetes.
    """

    alias: str
    issuer: str
    audiences: Sequence[str]
    keys: KeySet
    kubernetes: bool = False


class Issuers:
    """Verifies the tokens of the issuers of one service.

    Args:
        issuers: issuers with different values of `issuer`.
        clock_skew_s: largest difference between clocks, in seconds.
    """

    def __init__(self, issuers: Sequence[Issuer], clock_skew_s: float) -> None:
        self._by_issuer = {one.issuer: one for one in issuers}
        self._skew_s = clock_skew_s

    async def verify(self, token: str) -> Verified:
        """The caller with this token; raises AUTHENTICATION_FAILED, which states the fault, without the token."""
        try:
            header = jwt.get_unverified_header(token)
            claimed = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except Exception:  # noqa: BLE001 - unverified bytes
            raise refused("malformed", "the token is not a JSON web token") from None
        issuer = self._by_issuer.get(claimed) if isinstance(claimed, str) else None
        if issuer is None:
            raise refused("issuer", f"the token is of the issuer {_shown(claimed)}, which is not accepted here")
        keys = await self._keys(issuer, header)
        holds = partial(issuer.keys.is_at, issuer.keys.generation)
        try:
            claims = self._claims(token, issuer, keys)
            return Verified(_principal(issuer, claims["sub"]), _end_s(claims["exp"]) + self._skew_s, holds)
        except TidemarkError:
            raise
        except Exception as error:  # noqa: BLE001 - unverified bytes
            raise _fault(error, issuer) from None

    def _claims(self, token: str, issuer: Issuer, keys: Sequence[PublicKey]) -> Any:
        """The claims, verified with one of the keys; raises PyJWT's errors."""
        for left, key in enumerate(keys, 1 - len(keys)):
            try:
                return jwt.decode(
                    token,
                    key.key,
                    algorithms=list(key.algorithms),
                    audience=list(issuer.audiences),
                    issuer=issuer.issuer,
                    leeway=self._skew_s,
                    options={"require": list(_REQUIRED)},
                )
            except jwt.InvalidSignatureError:
                if not left:
                    raise
        raise AssertionError("no keys")

    async def _keys(self, issuer: Issuer, header: Mapping[str, Any]) -> Sequence[PublicKey]:
        kid = header.get("kid")
        keys = await issuer.keys.find(kid if isinstance(kid, str) else None)
        if not keys:
            raise refused("key", f"the token is signed with the key {_shown(kid)}, which {issuer.alias} does not have")
        usable = [key for key in keys if header.get("alg") in key.algorithms]
        if not usable:
            wanted = " or ".join(dict.fromkeys(one for key in keys for one in key.algorithms))
            raise refused("algorithm", f"the token is signed with {_shown(header.get('alg'))}: expected {wanted}")
        return usable


def _end_s(claim: object) -> float:
    """Seconds since 1970. PyJWT takes text as well, which other verifiers refuse, and ends beyond all dates."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or claim > _END_S_MAX:
        raise refused("malformed", "the token's claim exp is not a time as a number")
    return float(claim)


def _principal(issuer: Issuer, subject: str) -> Principal:
    try:
        return service_account_principal(subject) if issuer.kubernetes else issuer_principal(issuer.alias, subject)
    except ValueError:
        raise refused("subject", f"the token's subject {_shown(subject)} is not a name of a user") from None


def _fault(error: Exception, issuer: Issuer) -> TidemarkError:
    """The error for an error of PyJWT."""
    if isinstance(error, jwt.ExpiredSignatureError):
        return refused(TOKEN_EXPIRED, f"the token of {issuer.alias} has expired: call again with a new one")
    if isinstance(error, jwt.ImmatureSignatureError):
        return refused("not_yet_valid", "the token is not valid yet: is this machine's clock right?")
    if isinstance(error, jwt.InvalidAudienceError):
        return refused("audience", f"the token is for another audience: expected {' or '.join(issuer.audiences)}")
    if isinstance(error, jwt.MissingRequiredClaimError):
        return refused("claim", f"the token has no claim {error.claim}")
    if isinstance(error, jwt.InvalidSignatureError):
        return refused("signature", f"the token's signature is not of {issuer.alias}")
    return refused("malformed", "the token is not a valid JSON web token")


def _shown(claim: object) -> str:
    """An unverified claim, short and in ASCII."""
    return ascii(claim)[:_SHOWN] if isinstance(claim, str) else "unknown"


class IssuersFile:
    """The issuers of a YAML file, which is read again when it changes. Issuers that stay the same keep their keys.

    Raises:
        TidemarkError: INVALID_CONFIG.
    """

    def __init__(self, path: str, clock_skew_s: float) -> None:
        self._skew_s = clock_skew_s
        self._keys: dict[_Source, KeySet] = {}
        self._file = ChangedFile(self._load, path)

    async def verify(self, token: str) -> Verified:
        """Like `Issuers.verify`; the token no longer holds once the file has changed."""
        issuers = self._file.current()
        found = await issuers.verify(token)
        return found._replace(holds=partial(self._holds, issuers, found.holds))

    async def _holds(self, issuers: Issuers, holds: Callable[[], Awaitable[bool]] | None) -> bool:
        return issuers is self._file.current() and (holds is None or await holds())

    def _load(self, path: str) -> Issuers:
        listed = _read_issuers(path)
        sources = {alias: _source_of(fields) for alias, fields in listed.items()}
        self._keys = {source: self._keys.get(source) or _keys_from(source) for source in sources.values()}
        issuers = [_issuer(alias, fields, self._keys[sources[alias]]) for alias, fields in listed.items()]
        return Issuers(issuers, self._skew_s)


class _Source(NamedTuple):
    jwks: str
    ca_file: str
    token_file: str


def _source_of(fields: Mapping[str, Any]) -> _Source:
    return _Source(fields["jwks"], fields.get("ca.file", ""), fields.get("token.file", ""))


def _keys_from(source: _Source) -> KeySet:
    return KeySet(source.jwks, ca_file=source.ca_file, token_file=source.token_file)


def _issuer(alias: str, fields: Mapping[str, Any], keys: KeySet) -> Issuer:
    audience = fields["audience"]
    audiences = [audience] if isinstance(audience, str) else audience
    return Issuer(alias, fields["issuer"], audiences, keys, fields.get("kubernetes", False))


def _read_issuers(path: str) -> dict[str, Mapping[str, Any]]:
    """The checked fields of each alias; raises INVALID_CONFIG."""
    try:
        content = read_yaml(Path(path))
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _wrong(str(error)) from None
    if not isinstance(content, dict) or not content:
        raise _wrong(f"{path} must hold a mapping of alias: issuer")
    for alias, fields in content.items():
        _check_issuer(path, alias, fields)
    if len({fields["issuer"] for fields in content.values()}) < len(content):
        raise _wrong(f"{path}: two aliases have the same issuer")
    if sum(fields.get("kubernetes", False) for fields in content.values()) > 1:
        raise _wrong(f"{path}: two issuers are Kubernetes, and their service accounts would share names")
    return content


def _check_issuer(path: str, alias: object, fields: object) -> None:
    if not isinstance(alias, str) or not ALIAS.fullmatch(alias):
        raise _wrong(f"{path}: the alias is {alias!r}: expected small letters, digits and '-'")
    if not isinstance(fields, dict) or not fields.keys() <= _FIELDS:
        raise _wrong(f"{path}: {alias} may have {', '.join(sorted(_FIELDS))}")
    texts = {name: fields.get(name, "") for name in ("issuer", "jwks", "ca.file", "token.file")}
    audience = fields.get("audience", [])
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not audiences or not all(isinstance(one, str) and one for one in audiences):
        raise _wrong(f"{path}: {alias} needs an audience: this cluster's name in the tokens")
    for name, value in texts.items():
        if not isinstance(value, str) or (name in ("issuer", "jwks") and not value):
            raise _wrong(f"{path}: {alias} needs {name} as text")
    if not isinstance(fields.get("kubernetes", False), bool):
        raise _wrong(f"{path}: kubernetes of {alias} is neither true nor false")


def _wrong(sentence: str) -> TidemarkError:
    return invalid_config(_SETTING, f"{_SETTING}: {sentence}")

# SPDX-License-Identifier: Apache-2.0
"""The public keys of an issuer (JWKS): from a file or an https address, refreshed; after a failure the last valid
keys are kept.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jwt

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.changed_file import signature
from tidemark.runtime.clock import timeout
from tidemark.runtime.configuration.file_content import read_content

REFRESH_S: Final = 300.0
"""Age at which a use of the keys of an address reads them again, in the background."""
STALE_S: Final = 2 * REFRESH_S
"""Age at which a use of the keys of an address waits for the keys."""
UNKNOWN_KEY_S: Final = 10.0
"""Shortest time between two reads because of unknown keys: any caller can send tokens with made-up keys."""
_FETCH_S: Final = 5.0
"""Time limit of one read of the keys as a whole."""
_CHUNK_BYTES: Final = 64 << 10
_BYTES_MAX: Final = 1 << 20
_RSA_BITS_MIN: Final = 2048
_TYPES: Final = "application/jwk-set+json, application/json"
"""Accepted media types: an API server of Kubernetes answers 406 to a request for application/json alone."""
_ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
"""Algorithms by type or curve of the key: a key is never used for an algorithm of another kind, such as HMAC."""

_log = logging.getLogger(__name__)


class PublicKey(NamedTuple):
    """A key with the algorithms that it may be used for, and its id, if any."""

    kid: str | None
    key: Any
    algorithms: tuple[str, ...]


class KeySet:
    """The keys of one issuer; used on one event loop.

    Args:
        source: a path, or an https address.
        ca_file: PEM file of the authorities to trust at the address; "": the system's.
        token_file: a bearer token for the address, which Kubernetes requires; "": no token.
        now_s: a monotonic clock.

    Attributes:
        failures: times that the keys could not be read.
        generation: times that the keys changed.
    """

    def __init__(
        self, source: str, *, ca_file: str = "", token_file: str = "", now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.failures = 0
        self.generation = 0
        self._source = source
        self._ca_file = ca_file
        self._token_file = token_file
        self._now_s = now_s
        self._keys: Sequence[PublicKey] = ()
        self._content = b""
        self._failed = False
        self._tried_s: float | None = None
        self._waited = False
        """Whether uses of the keys wait for the read in flight."""
        self._seen: tuple[int, ...] | None = None
        self._reading: asyncio.Task[None] | None = None
        if "://" in source and not source.startswith("https://"):
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG, f"jwks is {source}: expected a path, or an address with https"
            )

    async def find(self, kid: str | None) -> Sequence[PublicKey]:
        """The keys with this id; without an id, the only key, or the keys without an id. Reads the source again if
        there are none.
        """
        await self._refresh()
        found = self._look_up(kid)
        if not found and (self._reading is not None or self._may_try()):
            await asyncio.shield(self._reading or self._read_again())
            found = self._look_up(kid)
        return found

    async def is_at(self, generation: int) -> bool:
        """Whether the keys still have this generation, after another read if it is due."""
        await self._refresh()
        return generation == self.generation

    async def _refresh(self) -> None:
        if self._is_due():
            self._waited = self._is_waited_for()
            self._read_again()
        if self._reading is not None and self._waited:
            await asyncio.shield(self._reading)

    def _is_waited_for(self) -> bool:
        """A file is read immediately. The issuer at an address may be silent: recently used keys stay in use."""
        is_local = not self._source.startswith("https://")
        return is_local or not self._keys or self._tried_s is None or self._now_s() - self._tried_s >= STALE_S

    def _look_up(self, kid: str | None) -> Sequence[PublicKey]:
        if kid is None and len(self._keys) == 1:
            return self._keys
        return [one for one in self._keys if one.kid == kid]

    def _is_due(self) -> bool:
        if self._reading is not None:
            return False
        if not self._source.startswith("https://"):
            return self._signature() != self._seen or ((self._failed or not self._keys) and self._may_try())
        if not self._keys:
            return self._may_try()
        return self._tried_s is None or self._now_s() - self._tried_s >= REFRESH_S

    def _may_try(self) -> bool:
        return self._tried_s is None or self._now_s() - self._tried_s >= UNKNOWN_KEY_S

    def _read_again(self) -> asyncio.Task[None]:
        self._tried_s = self._now_s()
        self._reading = asyncio.create_task(self._read(), name="JWKS")
        return self._reading

    async def _read(self) -> None:
        try:
            self._seen = self._signature()
            async with timeout(_FETCH_S):
                content = await asyncio.to_thread(self._fetch)
            keys = parse_keys(content)
            if content != self._content:
                _log.info(
                    "the public keys were read", extra={"source": self._source, "keys": [str(one.kid) for one in keys]}
                )
                self.generation += 1
            self._keys, self._content, self._failed = keys, content, False
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.failures += 1
            self._failed = True
            _log.warning("the public keys cannot be read; the last valid keys stay in use: %r", error)
        finally:
            self._reading = None
            self._waited = False

    def _signature(self) -> tuple[int, ...] | None:
        return None if self._source.startswith("https://") else signature(self._source)

    def _fetch(self) -> bytes:
        if not self._source.startswith("https://"):
            return read_content(self._source)
        request = urllib.request.Request(self._source, headers={"Accept": _TYPES})
        if self._token_file:
            request.add_header("Authorization", f"Bearer {read_content(self._token_file).decode().strip()}")
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self._trust()), _NoRedirects())
        ends_s = time.monotonic() + _FETCH_S
        content = bytearray()
        with opener.open(request, timeout=_FETCH_S) as answer:
            while chunk := answer.read1(_CHUNK_BYTES):
                content += chunk
                if len(content) > _BYTES_MAX:
                    raise ValueError(f"{self._source} answered with more than {_BYTES_MAX} bytes")
                if time.monotonic() > ends_s:
                    raise TimeoutError(f"{self._source} did not answer in {_FETCH_S:g} s")
            if answer.length:
                raise http.client.IncompleteRead(bytes(content), answer.length)
        return bytes(content)

    def _trust(self) -> ssl.SSLContext:
        if not self._ca_file:
            return ssl.create_default_context()
        authorities = read_content(self._ca_file).decode("ascii", "ignore")
        return ssl.create_default_context(cadata=authorities or "none")  # "" would mean those of the system


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect, which could lead away from https; a redirect is an error."""


def parse_keys(content: bytes) -> Sequence[PublicKey]:
    """The usable keys; other keys are ignored. ValueError: the document is not a JWKS, or has no usable key."""
    try:
        listed = json.loads(content)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("this is not a JWKS, which has a list of keys") from None
    keys = [found for one in (listed if isinstance(listed, list) else ()) if (found := _key(one)) is not None]
    if not keys:
        raise ValueError("the JWKS has no public key of a type that is accepted")
    return keys


def _key(fields: Any) -> PublicKey | None:
    if not isinstance(fields, dict) or fields.get("use", "sig") != "sig" or "d" in fields:
        return None
    kind = fields.get("kty")
    algorithms = _ALGORITHMS.get(str(kind if kind == "RSA" else fields.get("crv")), ())
    stated = fields.get("alg")
    if stated is not None:
        algorithms = tuple(one for one in algorithms if one == stated)
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(fields, algorithms[0]).key
    except Exception:  # noqa: BLE001 - other keys of the set may be valid
        return None
    if getattr(key, "key_size", _RSA_BITS_MIN) < (_RSA_BITS_MIN if kind == "RSA" else 0):
        return None
    kid = fields.get("kid")
    return PublicKey(kid if isinstance(kid, str) else None, key, algorithms)

# SPDX-License-Identifier: Apache-2.0
"""Verifies bearer tokens: static ones by their hash, others as JWT. No error or log line has a token."""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tidemark.core.security.principals import token_principal
from tidemark.errors import TOKEN_EXPIRED
from tidemark.model import TidemarkError
from tidemark.rpc.security import token_file
from tidemark.rpc.security.callers import TokenVerifier, Verified, refused

REASONS: Final = (
    *("missing", "unknown", "malformed", "too_long", TOKEN_EXPIRED, "not_yet_valid", "audience", "issuer"),
    *("algorithm", "key", "signature", "claim", "subject", "plain_text", "other_listener"),
)
"""Reasons in the metadata of a refusal, and in the metric."""
TOKEN_BYTES_MAX: Final = 8 << 10
"""gRPC refuses larger headers, by itself and with less to say."""
RECHECK_S: Final = 300.0
"""Streams with a static token end after this time, and their clients open others: a removed token is of no more use."""
TRUST_S: Final = 3600.0
"""Streams with a JWT end after this time at the latest, and their clients open others: the token is verified again."""
_CHECK_S: Final = 0.5
_CACHED: Final = 10_000

_log = logging.getLogger(__name__)


class StaticTokens:
    """The tokens of a file, which is read again when it changes.

    A file that cannot be read, or has a line of another form, keeps the former contents in use.

    Attributes:
        failures: times that a changed file was not used.

    Raises:
        TidemarkError: INVALID_CONFIG: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.failures = 0
        self._path = path
        self._seen = _signature(path)
        self._names = _by_hash(path)
        self._checked_s = time.monotonic()

    def name_of(self, digest: str) -> str | None:
        """The name of the token with this hash; None: there is none. A new token is known at once."""
        if digest not in self._names or time.monotonic() - self._checked_s >= _CHECK_S:
            self._checked_s = time.monotonic()
            self._look()
        return self._names.get(digest)

    def _look(self) -> None:
        seen = _signature(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._names = _by_hash(self._path)
            _log.info("the file of tokens changed", extra={"names": len(self._names)})
        except TidemarkError as error:
            self.failures += 1
            _log.warning("the changed file of tokens is not used: %s", error.message)


def _by_hash(path: str) -> dict[str, str]:
    return {digest: name for name, digest in token_file.read(path).items()}


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_dev, status.st_mtime_ns, status.st_size


class Tokens:
    """Verifies the tokens of callers.

    Args:
        static: the static tokens, if any are accepted.
        issuers: the issuers of JWT, if any are accepted.
        now_s: seconds since 1970.
    """

    def __init__(
        self,
        static: StaticTokens | None = None,
        issuers: TokenVerifier | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._static = static
        self._issuers = issuers
        self._now_s = now_s
        self._known: OrderedDict[str, Verified] = OrderedDict()
        """JWT by hash, while their keys are in use."""

    async def verify(self, token: str) -> Verified:
        """The caller with this token; raises AUTHENTICATION_FAILED, with a reason for metrics."""
        if not token:
            raise refused("missing", "this listener wants a token: set token_file (docs/security.md)")
        if len(token) > TOKEN_BYTES_MAX:
            raise refused("too_long", f"the token is longer than {TOKEN_BYTES_MAX} bytes")
        digest = token_file.digest_of(token)
        name = None if self._static is None else self._static.name_of(digest)
        if name is not None:
            return Verified(token_principal(name), self._now_s() + RECHECK_S)
        if self._issuers is None or token.count(".") != 2:
            raise refused("unknown", "the token is unknown: it was removed, or belongs to another cluster")
        known = self._known.get(digest)
        if known is not None and (known.expires_s or 0) > self._now_s() and known.holds and await known.holds():
            return known
        found = await self._issuers.verify(token)
        trusted_until_s = self._now_s() + TRUST_S
        found = found._replace(expires_s=min(found.expires_s or trusted_until_s, trusted_until_s))
        self._known[digest] = found
        self._known.move_to_end(digest)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return found

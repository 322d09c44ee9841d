# SPDX-License-Identifier: Apache-2.0
"""Verifies bearer tokens: static tokens by their hash, other tokens as JWT. No error or log line has a token."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tidemark.core.security.principals import token_principal
from tidemark.errors import TOKEN_EXPIRED
from tidemark.rpc.security import token_file
from tidemark.rpc.security.callers import TokenVerifier, Verified, refused
from tidemark.rpc.security.changed_file import ChangedFile

REASONS: Final = (
    *("missing", "unknown", "malformed", "too_long", TOKEN_EXPIRED, "not_yet_valid", "audience", "issuer"),
    *("algorithm", "key", "signature", "claim", "subject", "plain_text", "other_listener"),
)
"""Reasons in the metadata of a refusal, and in the metric."""
TOKEN_BYTES_MAX: Final = 8 << 10
"""Largest token: gRPC itself refuses larger headers, and its error names no cause."""
RECHECK_S: Final = 300.0
"""Streams with a static token end after this time, and their clients open new streams: so a removed token becomes
useless.
"""
TRUST_S: Final = 3600.0
"""Streams with a JWT end after this time at the latest, and their clients open new streams: so the token is verified
again.
"""
_CACHED: Final = 10_000


class StaticTokens:
    """The tokens of a file, which is read again when it changes.

    Raises:
        TidemarkError: INVALID_CONFIG: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._file = ChangedFile(_by_hash, path)

    def name_of(self, digest: str) -> str | None:
        """The name of the token with this hash; None if there is no such token. A new token is known immediately."""
        found = self._file.current().get(digest)
        return self._file.current(at_once=True).get(digest) if found is None else found


def _by_hash(path: str) -> dict[str, str]:
    return {digest: name for name, digest in token_file.read(path).items()}


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
            raise refused("missing", "this listener needs a token: set token_file (docs/security.md)")
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

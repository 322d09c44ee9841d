# SPDX-License-Identifier: Apache-2.0
"""The TLS files and the token of a client: given, or named by the environment."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tidemark.rpc.security.paths import TlsFiles, files_of, wrong_file
from tidemark.rpc.security.token_source import VARIABLE, TokenGiven, TokenSource

if TYPE_CHECKING:
    from tidemark.rpc.security.files import TlsIdentity


class Credentials(NamedTuple):
    """The arguments of a client that prove its identity; an argument that is None comes from the environment."""

    tls: TlsFiles | None = None
    token_file: TokenGiven | None = None


def client_identity(given: Credentials | TlsFiles | None) -> TlsIdentity | None:
    """The files and the token of a client; None: plain text.

    Args:
        given: the files; by default the files of TIDEMARK_TLS_CA_FILE, TIDEMARK_TLS_CERTIFICATE_FILE and
            TIDEMARK_TLS_KEY_FILE. The token; by default the token of TIDEMARK_TOKEN_FILE.

    Raises:
        TidemarkError: INVALID_CONFIG: a file is missing, or does not fit the others; a token without TLS.
        TypeError: `tls` is not a `TlsFiles`, or one of its fields is not a path; or the token is neither a path nor a
            callable.
    """
    tls, token = given if isinstance(given, Credentials) else (given, None)
    if token is None:
        token = os.environ.get(VARIABLE) or None
    elif not callable(token) and not isinstance(token, str | os.PathLike):
        raise TypeError(f"token_file is a {type(token).__name__}, neither a path nor a callable")
    elif not token:
        raise TypeError("token_file is empty: expected the path of a file with a token, or a callable")
    if tls is not None and not isinstance(tls, TlsFiles):
        raise TypeError(f"tls is {tls!r}: expected TlsFiles(ca='ca.crt', certificate='client.crt', key='client.key')")
    for name, path in zip(TlsFiles._fields, tls or (), strict=False):
        if not isinstance(path, str | os.PathLike):  # an integer would be a descriptor, and would be closed
            raise TypeError(f"{name} of tls is {path!r}, a {type(path).__name__}, not a path")
    files = files_of(os.environ) if tls is None else tls
    if not files.is_set:
        if token is None:
            return None
        raise wrong_file("a token needs TLS, since others could read it in plain text: set tls.ca.file")
    return _made(files, token) if callable(token) else _shared(files, None if token is None else os.fspath(token))


@lru_cache(maxsize=16)
def _shared(files: TlsFiles, token_file: str | None) -> TlsIdentity:
    """One identity for all clients of a process with the same files."""
    return _made(files, token_file)


def _made(files: TlsFiles, token: TokenGiven | None) -> TlsIdentity:
    from tidemark.rpc.security.files import TlsIdentity  # only clients with TLS need its libraries

    return TlsIdentity(files, None if token is None else TokenSource(token))

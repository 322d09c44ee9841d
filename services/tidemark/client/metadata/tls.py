# SPDX-License-Identifier: Apache-2.0
"""The TLS files of a client: given, or named by the environment."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from tidemark.rpc.security.paths import TlsFiles, files_of

if TYPE_CHECKING:
    from tidemark.rpc.security.files import TlsIdentity


def client_identity(tls: TlsFiles | None) -> TlsIdentity | None:
    """The files of a client; None: plain text.

    Args:
        tls: the paths; None: those of TIDEMARK_TLS_CA_FILE, TIDEMARK_TLS_CERTIFICATE_FILE and TIDEMARK_TLS_KEY_FILE.

    Raises:
        TidemarkError: INVALID_CONFIG: a file is missing, or does not fit the others.
        TypeError: not `TlsFiles`, or one of its fields is not a path.
    """
    if tls is not None and not isinstance(tls, TlsFiles):
        raise TypeError(f"tls is {tls!r}: want TlsFiles(ca='ca.crt', certificate='client.crt', key='client.key')")
    for name, path in zip(TlsFiles._fields, tls or (), strict=False):
        if not isinstance(path, str | os.PathLike):  # an integer would be a descriptor, and be closed
            raise TypeError(f"{name} of tls is {path!r}, a {type(path).__name__}, not a path")
    files = files_of(os.environ) if tls is None else tls
    return _shared(files) if files.is_set else None


@lru_cache(maxsize=16)
def _shared(files: TlsFiles) -> TlsIdentity:
    """One identity for all clients of a process with the same files."""
    from tidemark.rpc.security.files import TlsIdentity  # only clients with TLS need its libraries

    return TlsIdentity(files)

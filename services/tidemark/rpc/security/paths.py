# SPDX-License-Identifier: Apache-2.0
"""The paths of TLS files, in settings, arguments and the environment. This module imports no modules that only TLS
needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemark.model import TidemarkError, invalid_config

Names = tuple[str, str, str]
"""Names of the settings of a `TlsFiles`, in its order."""

SETTINGS: Final[Names] = ("tls.ca.file", "tls.certificate.file", "tls.key.file")
"""The settings of a service and of a client."""

TOKEN_ITSELF: Final = re.compile(r"\s*(tidemark_[\w-]{40}|eyJ|bearer\s)|.*[\r\n]|.{1024}", re.IGNORECASE | re.DOTALL)
"""Matches the start of a token, or text that is not a path, because an error about a missing file would show the
text.
"""


class TlsFiles(NamedTuple):
    """Paths of PEM files.

    Attributes:
        ca: certificates of the authorities to trust; a bundle may hold an old and a new one.
        certificate: this process's certificate, followed by its intermediates; "": a client without an identity.
        key: the private key of the certificate.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def is_set(self) -> bool:
        """Whether any file is named."""
        return any(self)

    def check(self, names: Names = SETTINGS) -> None:
        """Raises INVALID_CONFIG if a file is missing that the other files need."""
        if self.is_set and not self.ca:
            sentence = f"{names[0]} is not set: name the file with the certificate of the authority to trust"
            raise wrong_file(sentence, names[0])
        if bool(self.certificate) != bool(self.key):
            missing = names[2] if self.certificate else names[1]
            raise wrong_file(f"{missing} is not set: a certificate and its key are set together", missing)


FILE_VARIABLES: Final = TlsFiles("TIDEMARK_TLS_CA_FILE", "TIDEMARK_TLS_CERTIFICATE_FILE", "TIDEMARK_TLS_KEY_FILE")


def files_of(environ: Mapping[str, str]) -> TlsFiles:
    """The files that environment variables name."""
    return TlsFiles(*(environ.get(variable, "") for variable in FILE_VARIABLES))


def wrong_file(sentence: str, name: str = SETTINGS[0]) -> TidemarkError:
    """The error for a file that cannot be used."""
    return invalid_config(name, sentence)

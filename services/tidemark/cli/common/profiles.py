# SPDX-License-Identifier: Apache-2.0
"""Profiles of the command: the addresses of a cluster and the paths of the files that prove an identity to it."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import FILE_VARIABLES
from tidemark.rpc.security.token_source import VARIABLE
from tidemark.runtime.configuration.file_content import rest_of

_VARIABLES: Final = {
    "bootstrap": "TIDEMARK_BOOTSTRAP",
    "admin": "TIDEMARK_ADMIN",
    "tls.ca.file": FILE_VARIABLES.ca,
    "tls.certificate.file": FILE_VARIABLES.certificate,
    "tls.key.file": FILE_VARIABLES.key,
    "token.file": VARIABLE,
}
"""The environment variable of each entry of a profile."""
_SECRET: Final = re.compile(r"-----BEGIN|tidemark_[\w-]{40}|eyJ[\w-]+\.|bearer\s|.*[\r\n]", re.IGNORECASE | re.DOTALL)


def profiles_path(environ: Mapping[str, str]) -> Path:
    """The file of profiles: in XDG_CONFIG_HOME, by default ~/.config."""
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "tidemark" / "profiles.toml"


def use_profile(name: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Replace the environment's variables that concern a cluster by the profile's variables.

    The profile replaces all these settings, also by empty values. So an address of one cluster is never used with the
    identity of another.

    Raises:
        TidemarkError: INVALID_CONFIG: the profile does not exist, or has an invalid entry, or a secret in plain text.
    """
    path = profiles_path(environ)
    values = _read(path, name)
    for variable in _VARIABLES.values():
        environ.pop(variable, None)
    for key, value in values.items():
        whole = os.path.expanduser(value) if key.endswith(".file") else value
        environ[_VARIABLES[key]] = str(path.parent / whole) if key.endswith(".file") else whole


def _read(path: Path, name: str) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise _wrong(f"{path} can be written by others: chmod go-w it")
            profiles = tomllib.loads(rest_of(file).decode())
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise _wrong(f"{path} is not TOML") from None  # the library's error may repeat a secret
    found = profiles.get(name)
    if not isinstance(found, dict):
        known = ", ".join(sorted(one for one in profiles if isinstance(profiles[one], dict))) or "none"
        raise _wrong(f"{path} has no profile {name!r}; it has {known}")
    values: dict[str, str] = {}
    _flatten(path, name, "", found, values)
    return values


def _flatten(path: Path, profile: str, prefix: str, content: Mapping[str, Any], values: dict[str, str]) -> None:
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            _flatten(path, profile, f"{key}.", value, values)
            continue
        if isinstance(value, str) and _SECRET.match(value):
            raise _wrong(f"{path}: {profile} has a secret itself in {key}: name the file that holds the secret")
        if key not in _VARIABLES:
            raise _wrong(f"{path}: {profile} has {key}: expected {', '.join(_VARIABLES)}")
        if not isinstance(value, str) or not value:
            raise _wrong(f"{path}: {profile} has no text as {key}")
        values[key] = value


def _wrong(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_CONFIG, sentence)

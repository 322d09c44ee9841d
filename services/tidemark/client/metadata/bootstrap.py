# SPDX-License-Identifier: Apache-2.0
"""The addresses at which a client looks for the cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.host_port import HostPort

BOOTSTRAP_VARIABLE: Final = "TIDEMARK_BOOTSTRAP"

Bootstrap = str | Iterable[str]
"""Addresses of any brokers: "host:port[,host:port...]", or a list of such texts."""


def parse_bootstrap(bootstrap: Bootstrap | None, *, name: str = "bootstrap") -> tuple[str, ...]:
    """Parse addresses; None: the value of TIDEMARK_BOOTSTRAP. `name` names the argument in errors.

    Raises:
        TidemarkError: INVALID_CONFIG.
    """
    given = os.environ.get(BOOTSTRAP_VARIABLE, "") if bootstrap is None else bootstrap
    addresses = tuple(part.strip() for text in _texts(name, given) for part in text.split(",") if part.strip())
    if not addresses:
        raise _refusal(f"no broker is named: give host:port[,host:port...] or set {BOOTSTRAP_VARIABLE}")
    for address in addresses:
        _check(name, address)
    return addresses


def _texts(name: str, given: Any) -> list[str]:
    if isinstance(given, str):
        return [given]
    texts: list[Any] = [given]
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray):
        texts = list(given)
    for text in texts:
        if not isinstance(text, str):
            kind = type(text).__name__
            raise _refusal(f'{name}: {text!r} is a {kind}: give text, "host:port[,host:port...]", or a list of texts')
    return texts


def _check(name: str, address: str) -> None:
    if "://" in address:
        raise _refusal(f"{name}: {address!r} is a URL: give host:port, without the scheme and without a path")
    try:
        port = HostPort.parse(address).port
    except ValueError:
        port = 0
    if not port or any(letter.isspace() for letter in address):
        raise _refusal(f"{name}: {address!r} is not host:port")


def _refusal(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_CONFIG, sentence)

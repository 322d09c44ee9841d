# SPDX-License-Identifier: Apache-2.0
"""Options of both reads and writes: the brokers' addresses, the TLS files, and the error for an unknown name. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from tidemark.core.quotas.client_ids import check_client_id
from tidemark.model import TidemarkError, number_up_to
from tidemark.rpc.security.paths import SETTINGS, TOKEN_ITSELF, TlsFiles

ADDRESSES: Final = ("tidemark.bootstrap", "kafka.bootstrap.servers")

TLS_FILES: Final = tuple(f"tidemark.{setting}" for setting in SETTINGS)
"""Options with the path of a file, which every executor has at the same place; never the content of the file."""

TOKEN_FILE: Final = "tidemark.token.file"
"""Option with the path of a file with a bearer token, as `TLS_FILES`."""

CLIENT_ID: Final = ("tidemark.client.id", "kafka.client.id")
"""Names of the option with the client id, for quotas."""

ISOLATION_LEVEL: Final = ("tidemark.isolation.level", "kafka.isolation.level")
"""Names of the option that states whether a read omits open and aborted transactions."""

_LIKE: Final = 0.6
_LIKE_OF_KAFKAS: Final = 0.9
"""Least similarity of a suggested name, from 0 to 1. Many names of Kafka's clients are similar."""


def parse_whole(text: str) -> int | None:
    """The whole number from 0, of 64 bits, that `text` states in digits 0 to 9; None for another text."""
    return number_up_to((1 << 63) - 1, text.strip())


def parse_bootstrap(given: Mapping[str, str]) -> str:
    """host:port[,host:port...] from options with lower-case names; ValueError names the valid form."""
    found = {name: given[name].strip() for name in ADDRESSES if given.get(name, "").strip()}
    if not found:
        raise ValueError("option 'tidemark.bootstrap' is missing: host:port[,host:port...] of brokers")
    if len(set(found.values())) > 1:
        raise ValueError(f"options {' and '.join(map(repr, found))} name different brokers; remove one of them")
    name, text = next(iter(found.items()))
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not number_up_to(65535, port):
            raise ValueError(f"option {name!r}: {address.strip()!r} is not host:port")
    return text


def has_bootstrap(given: Mapping[str, str]) -> bool:
    """Whether an address is given, by options with lower-case names."""
    return any(given.get(name, "").strip() for name in ADDRESSES)


def parse_tls(given: Mapping[str, str]) -> TlsFiles | None:
    """The TLS files of options with lower-case names; None: each process takes the files that its environment names.

    Raises:
        ValueError: a file is missing that the other files need, or an option has the content of a file.
    """
    files = TlsFiles(*(given.get(name, "").strip() for name in TLS_FILES))
    for name, path in zip(TLS_FILES, files, strict=True):
        if path.startswith("-----"):
            raise ValueError(
                f"option {name!r} has the content of a file, and the query plan would show it: give its path"
            )
    try:
        files.check()
    except TidemarkError as error:
        raise ValueError(f"option tidemark.{error.message}") from None
    return files if files.is_set else None


def parse_token_file(given: Mapping[str, str]) -> str | None:
    """The path in the option of the token; None: each process takes the token of its environment, if any.

    Raises:
        ValueError: the option has the content of the file, which the error does not repeat.
    """
    path = given.get(TOKEN_FILE, "").strip()
    if TOKEN_ITSELF.match(path):
        raise ValueError(f"option {TOKEN_FILE!r} has a token, and the query plan would show it: give its path")
    return path or None


def parse_client_id(given: Mapping[str, str]) -> str:
    """The client id in options with lower-case names; "": no client id. ValueError names the valid form."""
    found = {given[name].strip() for name in CLIENT_ID if name in given}
    if len(found) > 1:
        raise ValueError(f"options {' and '.join(map(repr, CLIENT_ID))} contradict one another; remove one of them")
    try:
        return "".join(check_client_id(client_id) for client_id in found)
    except TidemarkError as error:
        raise ValueError(f"option {CLIENT_ID[0]!r}: {error.message}") from None


def parse_boolean(name: str, text: str) -> bool:
    """The value of an option that is true or false; ValueError otherwise."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"option {name!r} is {text!r}; expected true or false")
    return text.strip().lower() == "true"


def unknown_option(name: str, known: Iterable[str], kind: str) -> ValueError:
    """The error for an unknown name: with the most similar known name, or else with all known names.

    Args:
        name: the given name in lower case, as Spark passes it.
        known: all names, as the documentation spells them.
        kind: "reads" or "writes".
    """
    by_lower = {one.lower(): one for one in known}
    of_kafka = name.startswith("kafka.")
    like = difflib.get_close_matches(name, by_lower, n=1, cutoff=_LIKE_OF_KAFKAS if of_kafka else _LIKE)
    if like:
        return ValueError(f"tidemark has no option {name!r} for {kind}; did you mean {by_lower[like[0]]!r}?")
    if of_kafka:
        return ValueError(f"tidemark has no option {name!r} for {kind}: it configures Kafka's client; remove it")
    shown = ", ".join(sorted(one for one in by_lower.values() if not one.startswith("kafka.")))
    return ValueError(f"tidemark has no option {name!r} for {kind}; it has {shown}")

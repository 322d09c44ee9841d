# SPDX-License-Identifier: Apache-2.0
"""The option for the brokers' addresses, under Tidemark's name or that of Spark's Kafka source. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADDRESSES: Final = ("tidemark.bootstrap", "kafka.bootstrap.servers")


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
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"option {name!r}: {address.strip()!r} is not host:port")
    return text

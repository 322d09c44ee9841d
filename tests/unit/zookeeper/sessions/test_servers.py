# SPDX-License-Identifier: Apache-2.0
"""The order in which kazoo is led to servers, and their addresses while name servers are silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.zookeeper.sessions.servers import Servers

ONE, OTHER, THIRD = ("one", "10.0.0.1", 2181), ("other", "10.0.0.2", 2181), ("third", "10.0.0.3", 2181)


class Names:
    """A name server that may be silent or not know everything."""

    def __init__(self) -> None:
        self.known = [ONE, OTHER, THIRD]
        self.speaks = threading.Event()
        self.speaks.set()

    def expand(self) -> list[tuple[str, str, int]]:
        self.speaks.wait()
        return list(self.known)


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    yield made
    made.speaks.set()


def connection_of(names: Names) -> Any:
    """Kazoo's connection, as `Servers` leads it."""
    connection = SimpleNamespace(_expand_client_hosts=names.expand, _invoke=None, _connect=lambda *_: (1, 1))
    client = SimpleNamespace(_connection=connection, handler=SimpleNamespace(create_connection=None))
    Servers(client, 600)
    return connection


def test_the_server_that_was_tried_last_comes_last(names: Names) -> None:
    connection = connection_of(names)
    assert connection._expand_client_hosts() == [ONE, OTHER, THIRD]
    connection._connect(*ONE)
    assert connection._expand_client_hosts() == [OTHER, THIRD, ONE]


def test_while_name_servers_are_silent_the_addresses_of_before_are_gone_to(names: Names) -> None:
    connection = connection_of(names)
    connection._expand_client_hosts()
    names.speaks.clear()
    assert connection._expand_client_hosts() == [ONE, OTHER, THIRD]


def test_a_name_that_is_not_known_any_more_keeps_its_address_and_a_new_address_counts(names: Names) -> None:
    connection = connection_of(names)
    connection._expand_client_hosts()
    moved = ("other", "10.0.0.9", 2181)
    names.known = [moved, THIRD]
    assert connection._expand_client_hosts() == [moved, THIRD, ONE]

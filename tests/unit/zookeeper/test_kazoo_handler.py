# SPDX-License-Identifier: Apache-2.0
"""The `select` of kazoo's handler, by `poll`."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tidemark.zookeeper.kazoo_handler import PollHandler, poll_select

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_select_returns_the_sockets_that_are_ready(pair: Pair) -> None:
    near, far = pair
    assert PollHandler().select([near, far], [near], [], 0.0) == ([], [near], [])
    far.send(b"x")
    assert PollHandler().select([near, far], [near], [], None) == ([near], [near], [])


def test_poll_ends_at_its_timeout(pair: Pair) -> None:
    assert poll_select([pair[0]], [], 0.001) == ([], [])


def test_poll_calls_a_socket_readable_whose_peer_has_closed(pair: Pair) -> None:
    pair[1].close()
    assert poll_select([pair[0]], [], None)[0] == [pair[0]]


def test_poll_refuses_a_closed_socket(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(ValueError, match="negative"):
        poll_select([pair[0]], [], 0.0)

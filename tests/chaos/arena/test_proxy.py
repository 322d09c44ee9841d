# SPDX-License-Identifier: Apache-2.0
"""The proxy itself, with real sockets and real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.arena.proxy import ANY_CALLER, HOST, Ends, Network, Trouble, inodes_of

CALLER = """
import socket, sys
sys.stdin.readline()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as one:
    one.settimeout(20)
    for line in sys.stdin:
        one.sendall(line.encode())
        answer = one.recv(100)
        if not answer:
            break
        print(answer.decode(), end="", flush=True)
"""


@contextmanager
def echo() -> Iterator[int]:
    """A server that sends back the bytes that it receives; its port."""
    server = socket.create_server((HOST, 0))

    def serve(one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(100):
                    one.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(one,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture
def pids() -> dict[str, int]:
    return {}


@pytest.fixture
def network(pids: dict[str, int]) -> Iterator[Network]:
    with Network(lambda: pids) as made:
        yield made


def ask(one: socket.socket, word: bytes) -> bytes:
    one.sendall(word)
    return one.recv(100)


def is_broken(one: socket.socket) -> bool:
    """Whether the other end has ended the connection, with or without a reset."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def test_bytes_pass_until_the_way_is_silent_and_continue_when_it_is_not(network: Network) -> None:
    with echo() as target:
        port = network.add("server", lambda: target)
        with socket.create_connection((HOST, port)) as one:
            one.settimeout(10)
            assert ask(one, b"a") == b"a"
            network.disturb(ANY_CALLER, "server", Trouble(silent=True))
            one.sendall(b"b")
            one.settimeout(0.3)
            with pytest.raises(TimeoutError):
                one.recv(1)
            network.end(ANY_CALLER, "server")
            one.settimeout(10)
            assert one.recv(1) == b"b"


def test_silence_is_one_way(network: Network) -> None:
    with echo() as target:
        port = network.add("server", lambda: target)
        with socket.create_connection((HOST, port)) as one:
            one.settimeout(0.3)
            network.disturb("server", ANY_CALLER, Trouble(silent=True))
            one.sendall(b"heard, but the answer is held back")
            with pytest.raises(TimeoutError):
                one.recv(1)
            network.heal()
            one.settimeout(10)
            assert one.recv(5) == b"heard"


def test_refused_connections_break_and_new_ones_are_made_after_it(network: Network) -> None:
    with echo() as target:
        port = network.add("server", lambda: target)
        with socket.create_connection((HOST, port)) as one:
            one.settimeout(10)
            assert ask(one, b"a") == b"a"
            network.disturb(ANY_CALLER, "server", Trouble(refuse=True))
            assert is_broken(one)
        network.heal()
        with socket.create_connection((HOST, port)) as one:
            one.settimeout(10)
            assert ask(one, b"c") == b"c"


def test_a_delay_delays(network: Network) -> None:
    with echo() as target:
        port = network.add("server", lambda: target)
        network.disturb(ANY_CALLER, "server", Trouble(delay_s=0.2))
        with socket.create_connection((HOST, port)) as one:
            one.settimeout(10)
            began_s = time.monotonic()
            assert ask(one, b"a") == b"a"
            assert time.monotonic() - began_s >= 0.2


def test_bytes_pass_before_their_caller_is_known(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def callers(*_: object) -> dict[int, str]:
        looked.wait(30)
        return {}

    monkeypatch.setattr("tests.chaos.arena.proxy._callers", callers)
    try:
        with echo() as target:
            port = network.add("server", lambda: target)
            with socket.create_connection((HOST, port)) as one:
                one.settimeout(10)
                assert ask(one, b"a") == b"a"
    finally:
        looked.set()


def test_a_target_that_is_away_breaks_the_connection(network: Network) -> None:
    port = network.add("server", lambda: 1)
    with socket.create_connection((HOST, port)) as one:
        one.settimeout(10)
        assert is_broken(one)


def test_the_proxy_cuts_one_caller_and_serves_another(network: Network, pids: dict[str, int]) -> None:
    with echo() as target:
        port = network.add("server", lambda: target)
        callers = [
            subprocess.Popen(
                [sys.executable, "-c", CALLER, str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            for number, caller in enumerate(callers):
                pids[f"caller-{number}"] = caller.pid
            first, second = (_Talk(caller) for caller in callers)
            assert first.says("a") == "a"
            assert second.says("b") == "b"
            network.disturb("caller-0", "server", Trouble(refuse=True))
            assert first.says("c") == ""
            assert second.says("d") == "d"
        finally:
            for caller in callers:
                caller.kill()
                caller.communicate()
        assert os.getpid() not in pids.values()


class _Talk:
    def __init__(self, caller: subprocess.Popen[str]) -> None:
        self._caller = caller
        assert caller.stdin is not None
        caller.stdin.write("connect\n")

    def says(self, word: str) -> str:
        """The answer; empty once the caller has ended, because its connection broke."""
        assert self._caller.stdin is not None
        assert self._caller.stdout is not None
        try:
            self._caller.stdin.write(word + "\n")
            self._caller.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._caller.stdout.readline().strip()


def test_proxies_tell_two_connections_from_one_port_apart() -> None:
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        ports = [server.getsockname()[1] for server in (first, second)]
        with socket.socket() as one, socket.socket() as other:
            for made in (one, other):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((HOST, 0))
            other.bind(one.getsockname())
            for made, port in ((one, ports[0]), (other, ports[1])):
                made.connect((HOST, port))
            ends = Ends(one.getsockname()[1], ports[0])
            assert inodes_of({ends}) == {str(os.fstat(one.fileno()).st_ino): ends}

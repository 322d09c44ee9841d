# SPDX-License-Identifier: Apache-2.0
"""The preStop hook of a ZooKeeper pod serves until registrations are gone, but not when only this server stops."""

from __future__ import annotations

import contextlib
import socketserver
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.charts.rendering import CHARTS

SCRIPT = CHARTS / "zookeeper" / "files" / "before-stop.sh"


class FakeServer:
    """Answers `mntr` with one number of ephemeral nodes after another, then the last one; None: without a quorum."""

    def __init__(self, counts: list[int | None]) -> None:
        self.asked = 0
        self.counts = counts

    def answer(self, question: bytes) -> bytes:
        assert question == b"mntr"
        count = self.counts[min(self.asked, len(self.counts) - 1)]
        self.asked += 1
        if count is None:
            return b"This ZooKeeper instance is not currently serving requests\n"
        return f"zk_version\t3.9.5\nzk_ephemerals_count\t{count}\nzk_znode_count\t70\n".encode()


@contextlib.contextmanager
def listening(fake: FakeServer) -> Iterator[int]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(fake.answer(self.request.recv(4)))

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def asked_before_the_end(counts: list[int | None], wait_s: int, quiet_s: int) -> int:
    """The number of questions of the hook, which ends with status 0."""
    fake = FakeServer(counts)
    with listening(fake) as port:
        command = ["/bin/bash", str(SCRIPT), str(wait_s), str(quiet_s), "0", str(port)]
        done = subprocess.run(command, timeout=30, check=False)
    assert done.returncode == 0
    return fake.asked


@pytest.mark.parametrize(
    ("counts", "asked"),
    [
        ([0], 1),
        ([5, 4, 4, 1, 0], 5),
        ([5, 4, None, None, 0], 5),
        ([None], 5),
        ([5, 4, None, None, None, None, None], 7),
    ],
)
def test_the_hook_serves_until_no_registration_is_left_or_no_quorum_answers(
    counts: list[int | None], asked: int
) -> None:
    assert asked_before_the_end(counts, wait_s=30, quiet_s=30) == asked


@pytest.mark.parametrize(
    ("counts", "bound"),
    [
        pytest.param([5], "quiet_s", id="only this server stops"),
        pytest.param([5, 4, 4, 5], "quiet_s", id="a broker restarted meanwhile"),
        pytest.param([5, 4], "wait_s", id="a registration remains"),
    ],
)
def test_the_hook_ends_within_its_bounds(counts: list[int | None], bound: str) -> None:
    """On a busy machine the hook may send too few requests within a second, but not within all of these bounds."""
    others = {"wait_s": 30, "quiet_s": 30}
    assert any(asked_before_the_end(counts, **{**others, bound: least_s}) > len(counts) for least_s in (1, 3, 9))


def test_a_server_that_does_not_listen_is_not_waited_for() -> None:
    with listening(FakeServer([0])) as port:
        pass
    command = ["/bin/bash", str(SCRIPT), "30", "30", "0", str(port)]
    assert subprocess.run(command, timeout=20, check=False).returncode == 0

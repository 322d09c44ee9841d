# SPDX-License-Identifier: Apache-2.0
"""A service's life, in processes of its own that are sent real signals."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.collecting import THRESHOLDS
from tidemark.runtime.service import EXIT_FAILED, EXIT_OK, run_until_stopped

SERVICES = Path(__file__).parents[3] / "services"

PROGRAM = """
import asyncio, sys
from tidemark.runtime.collecting import THRESHOLDS
from tidemark.runtime.service import run_until_stopped

async def start():
    print("started", flush=True)

async def stop():
    print("stopping", flush=True)
    if "hang" in sys.argv:
        await asyncio.Event().wait()
    print("stopped", flush=True)

sys.exit(asyncio.run(run_until_stopped(start, stop)))
"""


async def run(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SERVICES)},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_service_in_order(number: signal.Signals) -> None:
    process = await run()
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"started\n"
        process.send_signal(number)
        assert await process.stdout.read() == b"stopping\nstopped\n"
        assert await process.wait() == EXIT_OK


async def test_a_second_signal_ends_a_stop_that_hangs() -> None:
    process = await run("hang")
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        assert await process.stdout.readline() == b"stopping\n"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM


async def test_a_start_that_fails_is_logged_stopped_and_an_exit_code(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    async def start() -> None:
        raise TidemarkError(ErrorCode.INVALID_CONFIG, "the port is taken")

    async def stop() -> None:
        calls.append("stop")

    assert await run_until_stopped(start, stop) == EXIT_FAILED
    assert calls == ["stop"]
    assert "the port is taken" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_service_that_fails_later_is_stopped_too() -> None:
    failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    calls: list[str] = []

    async def start() -> None:
        calls.append("start")
        failed.set_exception(TidemarkError(ErrorCode.BROKER_ID_TAKEN, "broker.id 1 is taken"))

    async def stop() -> None:
        calls.append("stop")

    assert await run_until_stopped(start, stop, failed=failed) == EXIT_FAILED
    assert calls == ["start", "stop"]


async def test_a_signal_during_the_start_interrupts_it() -> None:
    calls: list[str] = []

    async def start() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("interrupted")

    async def stop() -> None:
        calls.append("stop")

    assert await run_until_stopped(start, stop) == EXIT_OK
    assert calls == ["interrupted", "stop"]


def test_the_clock_never_goes_back() -> None:
    clock = SystemClock()
    times = [clock.now_ms() for _ in range(100)]
    assert times == sorted(times)
    assert clock.wall_us() > 1_700_000_000_000_000


@pytest.mark.parametrize("code", [0, 3])
def test_the_process_ends_with_its_code_and_all_that_was_printed(code: int) -> None:
    program = f"from tidemark.runtime.service import end_process; print('said'); end_process({code})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"said\n", b"")


async def test_a_service_collects_garbage_in_bounded_pauses_and_gives_that_up_when_it_ends() -> None:
    before = gc.get_threshold()
    seen = []

    async def start() -> None:
        seen.append(gc.get_threshold())
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

    async def stop() -> None:
        seen.append(gc.get_threshold())

    assert await run_until_stopped(start, stop) == EXIT_OK
    assert seen[0] == seen[1]
    assert seen[0] == THRESHOLDS
    assert gc.get_threshold() == before


async def test_the_first_failure_is_the_termination_message(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("of the last run, which was longer than that of this one will be" * 9)

    async def start() -> None:
        raise TidemarkError(ErrorCode.BROKER_ID_TAKEN, "broker 3 lives\nelsewhere")

    async def stop() -> None:
        raise ValueError("and that too")

    assert await run_until_stopped(start, stop, termination_path=str(path)) == EXIT_FAILED
    assert path.read_text() == "the start failed: BROKER_ID_TAKEN: broker 3 lives elsewhere\n"


async def test_a_service_that_breaks_while_it_runs_leaves_a_termination_message(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def start() -> None:
        failed.set_exception(ZeroDivisionError("by nought"))

    async def stop() -> None:
        pass

    assert await run_until_stopped(start, stop, failed=failed, termination_path=str(path)) == EXIT_FAILED
    assert path.read_text() == (
        "the service failed: ZeroDivisionError: by nought: a defect of this service; report it with the log, and start "
        "the service again\n"
    )


async def test_a_service_that_stops_as_it_should_leaves_no_termination_message(tmp_path: Path) -> None:
    async def start() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop() -> None:
        pass

    assert await run_until_stopped(start, stop, termination_path=str(tmp_path / "termination-log")) == EXIT_OK
    assert not (tmp_path / "termination-log").exists()

# SPDX-License-Identifier: Apache-2.0
"""Lines that C code writes to stderr appear in the log, and failed handshakes are counted."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tidemark.rpc.security.handshakes import reason_of

PREFIX = "1124 11:19:02.123456    4711 ssl_transport_security.cc:2563] "
FAILED = "Handshake failed with error SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"

PROGRAM = """
import os, subprocess, sys
from tidemark.rpc.security.handshakes import NativeLines
from tidemark.runtime.logging import configure_logging
from tidemark.runtime.metrics import METRICS

configure_logging("info", "json", "broker-0")
with NativeLines(METRICS):
    {step}
    print("of python", file=sys.stderr)
    subprocess.run(["/bin/sh", "-c", "echo of a child >&2"])
os.write(2, b"after it\\n")
print(METRICS.render().decode())
sys.stdout.flush()
os._exit(0)
"""


def run(step: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(step=step)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)


def test_lines_of_the_c_library_are_log_lines_and_failed_handshakes_are_counted() -> None:
    expired = f"{FAILED}CERTIFICATE_VERIFY_FAILED: certificate has expired"
    written = [f"I{PREFIX}{expired}\n", f"E{PREFIX}no more descriptors\n", "of another library\n"] * 30
    done = run(f"[os.write(2, line.encode()) for line in {written!r}]")
    lines = done.stderr.splitlines()
    assert lines.count("of another library") == 30
    assert lines[-1] == "after it"
    assert {"of python", "of a child"} <= set(lines)
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    failed = [line for line in logged if line["message"] == "a TLS handshake failed"]
    assert len(failed) == 20, "more lines in ten seconds could fill the disk"
    assert {(line["level"], line["reason"]) for line in failed} == {("warning", "expired")}
    others = [(line["level"], line["source"]) for line in logged if line["message"] == "no more descriptors"]
    assert others == [("warning", "ssl_transport_security.cc:2563")] * 20
    assert len(logged) == 40
    assert 'tidemark_tls_handshake_failures_total{reason="expired"} 30.0' in done.stdout


@pytest.mark.parametrize("lines", [300, 20_000])
def test_a_full_pipe_is_counted_and_logged(lines: int) -> None:
    """Also where one short burst fills the pipe before its reader runs: the writer keeps core and GIL here.

    The GIL is kept for longer than any busy machine needs for the burst. A reader that ran between its check and its
    read could empty the pipe unseen, so the burst begins when earlier lines have been read. The redirection ends when
    all lines have been read.
    """
    line = f"I{PREFIX}no more descriptors\n".encode()
    steps = (
        "import ctypes, fcntl, termios, threading, time",
        wait_until_read := "while any(fcntl.ioctl(2, termios.FIONREAD, bytes(4))): time.sleep(0.01)",
        "reader = next(thread.native_id for thread in threading.enumerate() if thread.name == 'native lines')",
        "core = {min(os.sched_getaffinity(0))}",
        "os.sched_setaffinity(0, core)",
        "os.sched_setaffinity(reader, core)",
        "os.sched_setscheduler(reader, os.SCHED_IDLE, os.sched_param(0))",
        "sys.setswitchinterval(1000)",
        f"line, write = {line!r}, ctypes.PyDLL(None).write",
        f"print('lost', sum(write(2, line, {len(line)}) < 0 for _ in range({lines})))",
        "sys.setswitchinterval(0.005)",
        "os.sched_setscheduler(reader, os.SCHED_OTHER, os.sched_param(0))",
        wait_until_read,
    )
    done = run("\n    ".join(steps))
    assert "lost 0\n" not in done.stdout, "the pipe lost no line"
    assert re.search(r"^tidemark_native_lines_full_total [1-9]", done.stdout, re.MULTILINE)
    assert "lines of C code may be missing" in done.stderr


@pytest.mark.parametrize("padding", [0, 3_000, 9_000])
def test_text_of_a_peer_makes_no_lines_of_its_own(padding: int) -> None:
    """A peer's text, such as the debug text of a GOAWAY frame, which gRPC writes as it is."""
    begin = f"I{PREFIX}Got goaway; Debug Text: "
    text = f"{'x' * padding}\nE{PREFIX}forged\nI{PREFIX}{FAILED}forged\n{{}}\n".ljust(4095 - len(begin)) + "\nforged"
    done = run(f"os.write(2, {(begin + text)!r}.encode() + bytes([10]))")
    lines = [line for line in done.stderr.splitlines() if line not in ("of python", "of a child", "after it")]
    assert [json.loads(line)["message"][:10] for line in lines] == ["Got goaway"]
    assert "tidemark_tls_handshake_failures_total{" not in done.stdout


def test_the_trace_of_a_crash_reaches_stderr() -> None:
    done = run("import ctypes; ctypes.string_at(0)")
    assert done.returncode < 0
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_full_pipe_does_not_stop_a_writer_that_holds_the_interpreter() -> None:
    """The reader needs the interpreter's lock to empty the pipe, so nothing but the writer can continue."""
    done = run("import ctypes; print(ctypes.PyDLL(None).write(2, bytes(4 << 20), 4 << 20))")
    assert 0 < int(done.stdout.splitlines()[0]) < 4 << 20
    assert done.stderr.splitlines()[-1] == "after it"


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "authority"),
        ("CERTIFICATE_VERIFY_FAILED: self signed certificate", "authority"),
        ("CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "not_yet_valid"),
        ("CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose", "purpose"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verification context", "no_certificate"),
        ("WRONG_VERSION_NUMBER: Invalid certificate verification context", "no_tls"),
        ("TLSV1_ALERT_UNKNOWN_CA", "refused_by_peer"),
        ("A_NEW_ERROR", "other"),
    ],
)
def test_each_error_of_a_handshake_has_a_reason(part: str, reason: str) -> None:
    assert reason_of(FAILED + part) == reason

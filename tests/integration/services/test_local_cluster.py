# SPDX-License-Identifier: Apache-2.0
"""The local cluster: real processes, started, killed, paused, restarted and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.local.cluster import ADMIN, LocalCluster, broker_name, controller_name
from tidemark.local.ports import HeldPorts
from tidemark.local.process import ServiceProcess
from tidemark.model import ErrorCode, TidemarkError

from tests.integration.harness.warm_service import fresh_services
from tests.integration.harness.zookeeper_root import own_zookeepers


@pytest.fixture(autouse=True)
def as_users_start_them() -> Iterator[None]:
    with fresh_services(), own_zookeepers():
        yield


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):  # FileNotFoundError: the process ended between the two reads
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline_s, f"{pid} lives on"
        time.sleep(0.02)


def test_every_service_is_serving_and_has_metrics(cluster: LocalCluster) -> None:
    assert len(cluster.bootstrap.split(",")) == 3
    for name in cluster.names:
        with grpc.insecure_channel(cluster.address(name)) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with urllib.request.urlopen(f"http://{cluster.metrics_address(name)}/metrics", timeout=30) as page:
            assert b"tidemark_" in page.read()


def test_services_are_killed_paused_restarted_and_stopped_one_by_one(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        pids = {name: cluster.process(name).pid for name in cluster.names}
        cluster.kill(broker_name(1))
        assert not cluster.process(broker_name(1)).running
        cluster.pause(controller_name(1))
        assert Path(f"/proc/{pids[controller_name(1)]}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        cluster.resume(controller_name(1))
        cluster.restart(broker_name(1))
        cluster.terminate(ADMIN)
        assert cluster.process(ADMIN).exit_status == 0
        cluster.restart(ADMIN)
        pids |= {name: cluster.process(name).pid for name in cluster.names}
        zookeeper = cluster.zookeeper.pid
    assert not any(is_alive(pid) for pid in (*pids.values(), zookeeper))


def test_a_failed_start_reports_its_cause_and_leaves_nothing(tmp_path: Path) -> None:
    broken = LocalCluster(tmp_path, brokers=1, controllers=1, settings={"broker": {"num.read.threads": "0"}})
    with pytest.raises(TidemarkError, match=r"num\.read\.threads") as refusal:
        broken.start()
    assert "broker-0 ended (status 2)" in refusal.value.message
    assert not any(broken.process(name).running for name in broken.names)


def test_processes_die_with_the_one_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tidemark.local.process import ServiceProcess\n"
        "child = ServiceProcess('sleeper', 'http.server', ['0'], log=Path(sys.argv[1]), environment={})\n"
        "child.start(); print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
    wait_until_dead(child)


def test_the_log_of_a_process_that_ended_is_in_the_error(tmp_path: Path) -> None:
    process = ServiceProcess("gone", "no_such_module", [], log=tmp_path / "gone.log", environment={})
    process.start()
    assert process.wait(20)
    error = process.died("ended")
    assert "No module named no_such_module" in error.message


def test_a_reserved_port_is_given_once() -> None:
    ports = HeldPorts()
    try:
        port = ports.take("mine")
        assert ports.take("mine") == port
        assert ports.take("also mine") != port
        with pytest.raises(OSError, match="in use"), socket.socket() as stranger:
            stranger.bind(("127.0.0.1", port))
    finally:
        ports.release()


def test_a_port_with_a_listener_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = HeldPorts()
        with pytest.raises(TidemarkError, match="is taken") as refusal:
            ports.take("broker-0", listener.getsockname()[1])
        assert refusal.value.code == ErrorCode.INVALID_CONFIG
        ports.release()

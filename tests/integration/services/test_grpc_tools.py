# SPDX-License-Identifier: Apache-2.0
"""grpcurl and ghz, as their projects publish them, call the services without .proto files.

`make grpc-tools` builds both with Go, once; without them these tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tidemark.local.cluster import LocalCluster, broker_name, controller_name

BUILT = Path(__file__).resolve().parents[3] / ".peers" / "go" / "bin"
TIMEOUT_S = 60
INVALID_ARGUMENT, NOT_FOUND = 64 + 3, 64 + 5
"""grpcurl's exit status: 64 and the number of the gRPC status."""


def run(tool: str, *arguments: str, status: int = 0) -> str:
    if not (BUILT / tool).exists():
        needed = "make grpc-tools builds it" if shutil.which("go") else "install Go, then run make grpc-tools"
        pytest.skip(f"{tool} is not built: {needed}")
    done = subprocess.run([BUILT / tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def grpcurl(address: str, *words: str, request: str = "", status: int = 0) -> str:
    return run("grpcurl", "-plaintext", *(("-d", request) if request else ()), address, *words, status=status)


@pytest.mark.parametrize(
    ("process", "service", "method"),
    [
        (broker_name(0), "tidemark.v1.BrokerService", "GetMetadata"),
        (controller_name(0), "tidemark.v1.ControllerService", "AskReplicas"),
        ("admin", "tidemark.v1.AdminService", "SafeToRestart"),
    ],
)
def test_grpcurl_lists_and_describes_services_and_methods(
    cluster: LocalCluster, process: str, service: str, method: str
) -> None:
    address = cluster.address(process)
    assert {service, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= set(
        grpcurl(address, "list").split()
    )
    assert f"{service}.{method}" in grpcurl(address, "list", service).split()
    assert f"rpc {method} (" in grpcurl(address, "describe", f"{service}.{method}")
    assert "SERVING" in grpcurl(address, "grpc.health.v1.Health/Check", request='{"service": "liveness"}')


def test_grpcurl_calls_a_broker(cluster: LocalCluster) -> None:
    answer = json.loads(grpcurl(cluster.address(broker_name(0)), "tidemark.v1.BrokerService/GetMetadata"))
    assert len(answer["metadata"]["brokers"]) == 3


def test_grpcurl_gets_a_status_for_each_refusal(cluster: LocalCluster) -> None:
    method = "tidemark.v1.AdminService/SafeToRestart"
    answer = json.loads(grpcurl(cluster.admin_address, method, request='{"broker_id": 0}'))
    assert answer.get("safe") is True
    refused = grpcurl(cluster.admin_address, method, request='{"broker_id": 77}', status=NOT_FOUND)
    assert "broker 77 never registered" in refused
    assert "set broker_id" in grpcurl(cluster.admin_address, method, request='{"claim": true}', status=INVALID_ARGUMENT)


@pytest.mark.parametrize(
    ("process", "call"),
    [
        (broker_name(0), "tidemark.v1.BrokerService.GetMetadata"),
        ("admin", "tidemark.v1.AdminService/DescribeCluster"),
    ],
)
def test_ghz_calls_by_name(cluster: LocalCluster, process: str, call: str) -> None:
    flags = ("--insecure", "-n", "40", "-c", "4", "-O", "json")
    report: Any = json.loads(run("ghz", *flags, "--call", call, "-d", "{}", cluster.address(process)))
    assert report["statusCodeDistribution"] == {"OK": 40}

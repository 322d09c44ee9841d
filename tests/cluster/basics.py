# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a new release: its image, its install, and records."""

from __future__ import annotations

import time
from typing import Final

from tests.cluster.images import archive_of, unpacked_megabytes
from tests.cluster.kube import CommandError
from tests.cluster.world import CHART, RELEASE, World, pause_s_max

_IMAGE_MB_MAX: Final = 350.0
_READY_S_MAX: Final = 60.0
_RECORDS: Final = 1000


def image_is_small(world: World) -> str:
    """The image of services and CLI is small, runs as user 10001, and writes to its volumes only."""
    tried = world.cluster.kubectl("exec", "client", "--", "sh", "-c", "id -u; touch /opt/x 2>&1 || true")
    assert tried.splitlines()[0] != "0", tried
    assert "Read-only file system" in tried, tried
    if not world.cluster.own:
        return "its size is unknown in this cluster"
    size = unpacked_megabytes(archive_of(world.cluster, "tidemark"))
    world.numbers["image tidemark, unpacked"] = f"{size:.0f} MB"
    assert size <= _IMAGE_MB_MAX, f"{size:.0f} MB"
    return f"{size:.0f} MB unpacked"


def install_is_ready(world: World) -> str:
    """`helm install` is ready within a minute: ZooKeeper, controllers, admin and three brokers."""
    begun_s = time.monotonic()
    world.install()
    took_s = time.monotonic() - begun_s
    world.numbers["helm install to ready"] = f"{took_s:.1f} s"
    pods = world.cluster.objects("pods", "-l", f"app.kubernetes.io/instance={RELEASE}")["items"]
    restarts = sum(status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"])
    limit_s = pause_s_max(_READY_S_MAX)
    assert took_s <= limit_s, f"{took_s:.1f} s, limit {limit_s:.0f} s"
    return f"{took_s:.1f} s, {len(pods)} pods, {restarts} restarts"


def helm_test_passes(world: World) -> str:
    """`helm test` creates a topic, writes, reads, and deletes the topic."""
    said = world.cluster.helm("test", RELEASE, "--timeout", "120s", timeout_s=150)
    assert "Succeeded" in said, said
    return "succeeded"


def records_go_through(world: World) -> str:
    """A client pod creates a topic, writes records, and reads each of them once and in order."""
    world.cli("topic", "create", "kept", "--partitions", "6", "--replication-factor", "3")
    sent = [f"{number:05}" for number in range(_RECORDS)]
    world.cli("produce", "kept", stdin="".join(f"{value}\n" for value in sent))
    received = values_of(world, "kept")
    assert received == sent, f"{len(received)} records, not {_RECORDS}"
    return f"{_RECORDS:,} records"


def mistakes_are_refused(world: World) -> str:
    """`helm upgrade` refuses invalid values with a sentence, and the release is unchanged."""
    before = world.cluster.helm("history", RELEASE, "-o", "json")
    try:
        world.cluster.helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", "broker.replicas=2")
    except CommandError as error:
        said = str(error)
    else:
        raise AssertionError("two brokers cannot hold three replicas, and the upgrade went through")
    assert "replicas" in said, said
    assert world.cluster.helm("history", RELEASE, "-o", "json") == before
    return said.strip().splitlines()[-1][:160]


def apply_tells_differences(world: World) -> str:
    """`tidemark apply --check` in CI: status 2 if the cluster differs from the file, 0 after it was applied."""
    wanted = "topics:\n  by-ci:\n    partitions: 3\n    replication_factor: 3\n"
    statuses = []
    for command in ("--check", "", "--check"):
        line = f"tidemark apply -f - {command} >/dev/null; echo $?"
        statuses.append(world.cluster.kubectl("exec", "-i", "client", "--", "sh", "-c", line, stdin=wanted).strip())
    assert statuses == ["2", "0", "0"], statuses
    return "2, then applied, then 0"


def values_of(world: World, topic: str) -> list[str]:
    """The values of all records of a topic, sorted."""
    said = world.cli("consume", topic, "--from", "earliest", "--until-end", "--output", "text", timeout_s=120)
    return sorted(line for line in said.splitlines() if line)

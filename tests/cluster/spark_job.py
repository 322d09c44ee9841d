# SPDX-License-Identifier: Apache-2.0
"""A Spark job on Kubernetes: the driver is a pod and creates its executors, which read a topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.basics import records_go_through
from tests.cluster.images import reference
from tests.cluster.kube import ROOT, wait_for
from tests.cluster.world import RELEASE, World

_MANIFESTS: Final = ROOT / "deploy" / "spark"
_PROGRAM: Final = Path(__file__).with_name("count_rows.py")
_JOB: Final = "count-rows"
_JOB_TIMEOUT_S: Final = 300.0


def spark_reads_a_topic(world: World) -> str:
    """A Spark job of deploy/spark with driver and executor pods reads every record of a topic once."""
    if "kept" not in world.topics():
        records_go_through(world)
    if world.secure:
        account = f"User:system:serviceaccount:{world.cluster.namespace}:tidemark-spark"
        world.cli("acl", "add", "--principal", account, "--allow", "read", "--topic", "kept")
    world.cluster.kubectl("apply", "-k", str(_MANIFESTS))
    world.cluster.kubectl("delete", "job,configmap", _JOB, "--ignore-not-found")
    world.cluster.kubectl("create", "configmap", _JOB, f"--from-file={_PROGRAM}")
    world.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_job(world)))
    executors: set[str] = set()

    def ended() -> bool:
        pods = world.cluster.objects("pods", "-l", "spark-role=executor")["items"]
        executors.update(pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running")
        status: dict[str, Any] = world.cluster.objects("job", _JOB)["status"]
        assert not status.get("failed"), world.cluster.kubectl("logs", f"job/{_JOB}", "--tail=40")
        return bool(status.get("succeeded"))

    took_s = wait_for("the end of the job", _JOB_TIMEOUT_S, ended, pause_s=1.0)
    log = world.cluster.kubectl("logs", f"job/{_JOB}")
    found = json.loads(next(line for line in log.splitlines() if line.startswith('{"rows"')))
    assert found["rows"] == found["distinct"] == 1000, found
    assert executors, "no executor was found"
    assert set(found["hosts"]) <= executors, (found, executors)
    return f"{found['rows']:,} rows, read by {len(found['hosts'])} of {len(executors)} executor pods; {took_s:.0f} s"


def _job(world: World) -> dict[str, Any]:
    """The Job of deploy/spark with the test's image and program, small enough for the test's nodes."""
    repository, _, tag = reference("tidemark-spark").rpartition(":")
    values = {
        "release": RELEASE,
        "releaseNamespace": world.cluster.namespace,
        "security": {"enabled": world.secure},
        "image": {"repository": repository, "tag": tag},
        "job": f"/job/{_PROGRAM.name}",
        "args": ["kept"],
        "conf": {"spark.kubernetes.executor.request.cores": "100m", "spark.driver.memory": "512m"},
        "driver": {"resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": None}},
    }
    given = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    job: dict[str, Any] = yaml.safe_load(world.cluster.helm("template", _JOB, str(_MANIFESTS), *given))
    job["metadata"] = {"name": _JOB, "labels": job["metadata"]["labels"]}
    pod = job["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    driver["volumeMounts"].append({"name": "job", "mountPath": "/job"})
    pod["volumes"].append({"name": "job", "configMap": {"name": _JOB}})
    return job

# SPDX-License-Identifier: Apache-2.0
"""The release under test: install and upgrade, calls from a client pod, and load."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.images import reference
from tests.cluster.kube import ROOT, Cluster, CommandError, wait_for

RELEASE: Final = "tidemark"
CHART: Final = ROOT / "charts" / "tidemark"
VALUES: Final = Path(__file__).with_name("values.yaml")
CLIENT: Final = "client"
_LOAD: Final = Path(__file__).with_name("load.py")
_HEALTH_INTERVAL_S: Final = 1.0
_STOP_FILE: Final = "/tmp/stop"
_INSTALL_TIMEOUT_S: Final = 600.0
_LOAD_TIMEOUT_S: Final = 300.0
_UNINSTALL_TIMEOUT_S: Final = 300.0
"""More than the grace periods of brokers and ensemble."""
_PARTITIONS: Final = 300
_SYNC_S: Final = 180.0
_ANSWER_S: Final = 60.0
_NOT_REACHED: Final = "BROKER_NOT_AVAILABLE"
_BUSY_PER_CORE: Final = 2.0
"""Processes that want a core, on average, on a machine for which the limits of pauses are meant."""

_CLIENT_POD: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": CLIENT},
    "spec": {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "client",
                "image": reference("tidemark"),
                "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "infinity"],
                "env": [
                    {"name": "TIDEMARK_BOOTSTRAP", "value": f"{RELEASE}-bootstrap:9192"},
                    {"name": "TIDEMARK_ADMIN", "value": f"{RELEASE}-admin:9194"},
                ],
                "securityContext": {
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}


ACCOUNT: Final = "client"
"""Service account of the client pod of a secure release."""
SECURE: Final = {"security.mode": "secure", "zookeeper.tls.enabled": "true"}
_IDENTITY: Final = "/var/run/tidemark"


def client_pod(namespace: str, *, secure: bool) -> dict[str, Any]:
    """The client pod: in plain text, or with a token of its service account."""
    pod: dict[str, Any] = copy.deepcopy(_CLIENT_POD)
    if not secure:
        return pod
    spec = pod["spec"]
    spec["serviceAccountName"] = ACCOUNT
    token = {"path": "token", "audience": f"tidemark:{namespace}/{RELEASE}", "expirationSeconds": 600}
    authorities = {"name": f"{RELEASE}-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources = [{"serviceAccountToken": token}, {"configMap": authorities}]
    spec["volumes"].append({"name": "tidemark", "projected": {"sources": sources}})
    (container,) = spec["containers"]
    container["volumeMounts"].append({"name": "tidemark", "mountPath": _IDENTITY, "readOnly": True})
    domain = f"{namespace}.svc.cluster.local"
    container["env"] = [
        {"name": "TIDEMARK_BOOTSTRAP", "value": f"{RELEASE}-bootstrap.{domain}:9492"},
        {"name": "TIDEMARK_ADMIN", "value": f"{RELEASE}-admin.{domain}:9494"},
        {"name": "TIDEMARK_TLS_CA_FILE", "value": f"{_IDENTITY}/ca.crt"},
        {"name": "TIDEMARK_TOKEN_FILE", "value": f"{_IDENTITY}/token"},
    ]
    return pod


def _issued_by(issuer: str) -> dict[str, str]:
    """The values of a release whose certificates a ClusterIssuer of cert-manager makes."""
    if not issuer:
        return {}
    prefix = "security.certificates."
    return {
        f"{prefix}source": "certManager",
        f"{prefix}issuerRef.name": issuer,
        f"{prefix}issuerRef.kind": "ClusterIssuer",
    }


class Health(NamedTuple):
    """Counts of partitions at a time."""

    at_s: float
    offline: int
    under_replicated: int


class World:
    """One release in its own namespace, which admits Pod Security's restricted pods only.

    Args:
        secure: install with TLS, identities and access rules. The command line is then that of the admin service's pod,
            and the load has a token of its service account.
        issuer: a ClusterIssuer of cert-manager for the certificates of a secure release; "": the chart makes them.

    Attributes:
        numbers: the measured figures, by name.
        secure: whether the release is secure now.
    """

    def __init__(self, cluster: Cluster, *, secure: bool = False, issuer: str = "") -> None:
        self.cluster = cluster
        self.numbers: dict[str, str] = {}
        self.secure = secure
        self._issuer = issuer
        self._sets: dict[str, str] = {**SECURE, **_issued_by(issuer)} if secure else {}

    def begin(self) -> None:
        """Create the namespace; deletes the namespace of an earlier run first."""
        self.end()
        self.cluster.kubectl("create", "namespace", self.cluster.namespace)
        self.cluster.kubectl(
            "label", "namespace", self.cluster.namespace, "pod-security.kubernetes.io/enforce=restricted"
        )

    def end(self) -> None:
        """Delete the namespace with all objects and claims, without the grace period of brokers."""
        if not self.cluster.is_up:
            return
        with contextlib.suppress(CommandError):  # release and namespace may be missing
            self.cluster.helm("uninstall", RELEASE)
            self.cluster.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        self.cluster.kubectl("delete", "namespace", self.cluster.namespace, "--ignore-not-found", timeout_s=180)

    def install(self) -> None:
        """`helm install --wait`."""
        self._helm("install", "--wait")

    def install_only(self) -> None:
        """`helm install` without waiting, of a release that will not be ready."""
        self._helm("install")

    def upgrade(self, **sets: str) -> None:
        """`helm upgrade --wait` with additional values, which persist; a double underscore is a dot."""
        before = self._sets
        self._sets = before | {name.replace("__", "."): value for name, value in sets.items()}
        try:
            self._helm("upgrade", "--wait")
        except CommandError:
            self._sets = before  # later scenarios use the unchanged release
            raise

    def use(self, sets: dict[str, str]) -> None:
        """Replace the additional values; the next `install` or `upgrade` applies them."""
        self._sets = dict(sets)

    def uninstall(self, *, in_order: bool) -> float:
        """Uninstall and wait until all pods are gone; returns the seconds.

        Args:
            in_order: stop the brokers first, as docs/kubernetes.md advises; otherwise all pods stop at the same time.
        """
        begun_s = time.monotonic()
        if in_order:
            self.cluster.kubectl("scale", "statefulset", f"{RELEASE}-broker", "--replicas=0")
            self._wait_without_pods(",app.kubernetes.io/component=broker")
        self.cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s", timeout_s=200)
        self._wait_without_pods("")
        return time.monotonic() - begun_s

    def _wait_without_pods(self, more: str) -> None:
        selector = f"app.kubernetes.io/instance={RELEASE}{more}"
        wait_for(
            f"no pod of {selector}",
            _UNINSTALL_TIMEOUT_S,
            lambda: not self.cluster.objects("pods", "-l", selector)["items"],
        )

    def health_over_time(self, seconds: float) -> list[Health]:
        """Counts of unhealthy partitions, about once a second for that time."""
        seen: list[Health] = []
        begun_s = time.monotonic()
        while (at_s := time.monotonic() - begun_s) < seconds:
            found = self.cli_json("cluster", "describe")
            seen.append(Health(round(at_s, 1), found["offline_count"], found["under_replicated_count"]))
            time.sleep(_HEALTH_INTERVAL_S)
        return seen

    def client(self) -> None:
        """Start the client pod; in a started cluster on the first node, since the others may be disconnected."""
        node = {"kubernetes.io/hostname": "node-1"} if self.cluster.own else {}
        pod = client_pod(self.cluster.namespace, secure=self.secure)
        pod["spec"]["nodeSelector"] = node
        if self._issuer:
            self._give_authority()
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(account))
        self.cluster.kubectl("delete", "pod", CLIENT, "--ignore-not-found", "--grace-period=1")
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
        self.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{CLIENT}", "--timeout=60s")

    def _give_authority(self) -> None:
        """Copy the issuer's authority to a ConfigMap as the chart's Job makes it: clients mount no Secret."""
        name = f"{RELEASE}-ca"
        data = self.cluster.objects("secret", f"{RELEASE}-admin-tls")["data"]
        authority = base64.b64decode(data["ca.crt"]).decode()
        found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"ca.crt": authority}}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(found))

    def cli(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        """Run `tidemark ARGUMENTS` in the client pod, or as the operator of a secure release; returns its output."""
        pod = f"deploy/{RELEASE}-admin" if self.secure else CLIENT
        return self.cluster.kubectl("exec", "-i", pod, "--", "tidemark", *arguments, stdin=stdin, timeout_s=timeout_s)

    def cli_json(self, *arguments: str) -> Any:
        """The result of `tidemark ARGUMENTS --output json`, a command that reads; repeated while no service answers."""
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                return json.loads(self.cli(*arguments, "--output", "json"))
            except CommandError as error:
                if _NOT_REACHED not in str(error) or time.monotonic() > deadline_s:
                    raise

    def broker_pods(self) -> dict[str, dict[str, Any]]:
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=broker"
        return {pod["metadata"]["name"]: pod for pod in self.cluster.objects("pods", "-l", selector)["items"]}

    def wait_until_ready(self, brokers: int, timeout_s: float) -> float:
        """Wait until this number of broker pods is ready; returns the seconds."""
        return wait_for(
            f"{brokers} brokers ready",
            timeout_s,
            lambda: sum(is_ready(pod) for pod in self.broker_pods().values()) == brokers,
        )

    def wait_until_in_sync(self, timeout_s: float = _SYNC_S) -> float:
        """Wait until no partition is under-replicated; returns the seconds."""
        return wait_for(
            "every replica in its ISR",
            timeout_s,
            lambda: self.cli_json("cluster", "describe")["under_replicated_count"] == 0,
        )

    def _topic_of_load(self) -> None:
        """Create the topic `load` with 300 partitions, unless it exists, and wait until all replicas are in sync."""
        if "load" not in self.topics():
            flags = ("--partitions", str(_PARTITIONS), "--replication-factor", "3")
            self.cli("topic", "create", "load", *flags, "--config", "min.insync.replicas=2")
        self.wait_until_in_sync()

    def topics(self) -> list[str]:
        names: list[str] = self.cli_json("topic", "list")
        return names

    def replicas(self, topic: str) -> dict[int, int]:
        """Number of replicas of a topic on each broker."""
        share = Counter(
            broker
            for partition in self.cli_json("topic", "describe", topic)[0]["partitions"]
            for broker in partition["replicas"]
        )
        return dict(sorted(share.items()))

    def load(self) -> Load:
        """Start to produce to the topic `load`."""
        self._topic_of_load()
        self.cluster.kubectl("exec", CLIENT, "--", "rm", "-f", _STOP_FILE)
        return Load(self.cluster, "load")

    def _helm(self, command: str, *more: str) -> None:
        sets = [f"--set={name}={value}" for name, value in self._sets.items()]
        timeout = f"--timeout={_INSTALL_TIMEOUT_S:g}s"
        arguments = (command, RELEASE, str(CHART), "-f", str(VALUES), *sets, timeout, *more)
        self.cluster.helm(*arguments, timeout_s=_INSTALL_TIMEOUT_S + 30)


class Load:
    """Producers in the client pod that record every acknowledgement (load.py)."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        program = _LOAD.read_text(encoding="utf-8")
        self._process: subprocess.Popen[str] = cluster.begin(
            "exec", CLIENT, "--", "python", "-c", program, topic, _STOP_FILE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.strip() != "loading":
            _, said = self._process.communicate(timeout=30)
            raise CommandError(f"the load did not start: {line}{said[-2000:]}")

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:  # an earlier step failed
            self._cluster.kubectl("exec", CLIENT, "--", "touch", _STOP_FILE)
            self._process.kill()
            self._process.wait()

    def end(self) -> dict[str, Any]:
        """Stop the load and check all records; returns the report of load.py."""
        self._cluster.kubectl("exec", CLIENT, "--", "touch", _STOP_FILE)
        try:
            output, said = self._process.communicate(timeout=_LOAD_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            raise CommandError(f"the load did not end within {_LOAD_TIMEOUT_S:g} s") from error
        if self._process.returncode:
            raise CommandError(f"the load failed: {said[-2000:]}")
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report


def pause_s_max(seconds: float) -> float:
    """The limit of a pause on this machine now: a process that gets a tenth of a core needs ten times as long."""
    return seconds * max(1.0, _busy())


def is_starved() -> bool:
    """Whether this machine is so busy that a live broker may miss its heartbeats and leave its ISRs for a moment."""
    return _busy() > 1.0


def _busy() -> float:
    return os.getloadavg()[0] / (os.cpu_count() or 1) / _BUSY_PER_CORE


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def no_record_lost(report: dict[str, Any]) -> str:
    """Assert that a load lost no record; returns a phrase for the output.

    Raises:
        AssertionError: an acknowledged record is missing at its offset, or a record failed.
    """
    assert report["acknowledged"] > 0, report
    assert report["distinct"] == report["acknowledged"], f"two records at one offset: {report}"
    assert report["lost"] == 0, report
    assert not report["failed"], report
    return f"{report['acknowledged']:,} records acknowledged in {report['seconds']:g} s, 0 lost"

# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a secure release: tokens, rights, a closed ZooKeeper, another authority, a start in plain text."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.cluster import basics
from tests.cluster.kube import CommandError, wait_for
from tests.cluster.world import ACCOUNT, CLIENT, RELEASE, SECURE, World, no_record_lost, pause_s_max

_RECORDS: Final = 1000
_ROTATED_S: Final = 240.0
"""More than a kubelet takes to bring changed Secrets to its pods."""
_PAUSE_S_MAX: Final = 2.0
_SHOWN: Final = """
import hashlib, socket, ssl, sys
context = ssl.create_default_context(cafile="/var/run/tidemark/ca.crt")
for host in sys.argv[1:]:
    with socket.create_connection((host, 9492), 10) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        print(hashlib.sha256(tls.getpeercert(True)).hexdigest())
"""
_ANONYMOUS: Final = """
import socket, ssl, sys
host, port, text = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode().decode("unicode_escape").encode("latin-1")
context = ssl._create_unverified_context()
try:
    with socket.create_connection((host, port), 10) as plain, context.wrap_socket(plain) as tls:
        tls.sendall(text)
        print("answered" if tls.recv(1) else "closed")
except OSError as error:
    print("refused", error)
"""
_COMPONENT: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={{}}"
_CONNECT: Final = """
import socket, sys
for name in sys.argv[1:]:
    host, _, port = name.rpartition(":")
    address = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4]
    try:
        socket.create_connection(address, 3).close()
        print(name, "open")
    except TimeoutError:
        print(name, "closed")
"""
"""A refused connection ends this with an error: the port has no listener, so it proves nothing."""
_STEPS: Final[tuple[dict[str, str], ...]] = (
    {"security.plainText": "used", "zookeeper.tls.quorum": "accept", "zookeeperTls.enabled": "false"},
    {"security.plainText": "open", "zookeeper.tls.quorum": "prefer"},
    {},
    {"zookeeper.tls.enforce": "true", "security.authorization.enabled": "true"},
)
"""The values of each upgrade of docs/kubernetes.md, added to a secure release without rules and enforcement."""


def principal(world: World) -> str:
    """The identity of the client pod."""
    return f"User:system:serviceaccount:{world.cluster.namespace}:{ACCOUNT}"


def install_is_ready(world: World) -> str:
    """`helm install` of a secure release is ready; the Job made authority and certificates before the pods began."""
    begun_s = time.monotonic()
    world.install()
    took_s = time.monotonic() - begun_s
    world.numbers["helm install of a secure release to ready"] = f"{took_s:.1f} s"
    world.client()
    world.cli("acl", "add", "--principal", principal(world), "--allow", "read", "--allow", "write", "--topic", "load")
    pods = world.cluster.objects("pods", "-l", f"app.kubernetes.io/instance={RELEASE}")["items"]
    restarts = sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", []))
    return f"{took_s:.1f} s, {len(pods)} pods, {restarts} restarts"


def records_go_through(world: World) -> str:
    """The operator creates a topic and gives rights; a pod with a token of its service account writes and reads."""
    world.cli("topic", "create", "kept", "--partitions", "6", "--replication-factor", "3")
    rights = ("--allow", "read", "--allow", "write", "--topic", "kept")
    world.cli("acl", "add", "--principal", principal(world), *rights)
    sent = [f"{number:05}" for number in range(_RECORDS)]
    in_client(world, "tidemark", "produce", "kept", stdin="".join(f"{value}\n" for value in sent))
    flags = ("--from", "earliest", "--until-end", "--output", "text")
    said = in_client(world, "tidemark", "consume", "kept", *flags)
    received = sorted(line for line in said.splitlines() if line)
    assert received == sent, f"{len(received)} records, not {_RECORDS}"
    assert basics.values_of(world, "kept") == sent, "the operator reads the same"
    return f"{_RECORDS} records by {principal(world)}"


def caller_without_rights_is_refused(world: World) -> str:
    """Without a right, a token, or the right audience, and in plain text, a call is refused with its reason."""
    world.cli("topic", "create", "secret", "--partitions", "1", "--replication-factor", "3")
    refusals = {
        "a topic without a right": refusal(
            world, "tidemark produce secret </dev/null && tidemark consume secret --until-end"
        ),
        "an act of administration": refusal(world, "tidemark topic delete --yes secret"),
        "no token": refusal(world, "TIDEMARK_TOKEN_FILE= tidemark topic list"),
        "no TLS": refusal(world, "TIDEMARK_TOKEN_FILE= TIDEMARK_TLS_CA_FILE= tidemark topic list"),
        "another token": refusal(
            world, "echo eyJhbGciOiJub25lIn0.e30. >/tmp/forged; TIDEMARK_TOKEN_FILE=/tmp/forged tidemark topic list"
        ),
    }
    assert "DESCRIBE it" in refusals["a topic without a right"], refusals
    assert principal(world) in refusals["an act of administration"], refusals
    for name in ("no token", "another token"):
        assert "AUTHENTICATION_FAILED" in refusals[name], refusals
    assert "secret" in world.topics()
    world.cli("topic", "delete", "--yes", "secret")
    return "; ".join(f"{name}: {said[-100:]}" for name, said in refusals.items())


def zookeeper_refuses_other_pods(world: World) -> str:
    """A pod without a certificate of the services gets no session with ZooKeeper, and no call of the cluster's own."""
    said = {}
    server = f"{RELEASE}-zookeeper-1.{RELEASE}-zookeeper-headless"
    for name, host, port in (
        ("2181", server, "2181"),
        ("2281", server, "2281"),
        ("internal", f"{RELEASE}-broker-0.{RELEASE}-broker-headless", "9692"),
    ):
        said[name] = in_client(world, "python", "-c", _ANONYMOUS, host, port, "srvr").strip()
        assert said[name] == "closed" or said[name].startswith("refused"), said
    # The server itself serves plain sessions to its own pod only, which needs no exec right beyond that pod.
    ours = "exec 3<>/dev/tcp/127.0.0.1/2181 && printf srvr >&3 && cat <&3"
    alive = world.cluster.kubectl("exec", f"{RELEASE}-zookeeper-1", "-c", "zookeeper", "--", "bash", "-c", ours)
    assert "Mode:" in alive, "the server was reachable, so the refusals above are refusals"
    status = world.cli("zookeeper", "close", "--dry-run")
    assert " 0 " in f" {status} " or "closed" in status, status
    return f"{said}; {status.strip().splitlines()[-1]}"


def authority_is_replaced_under_load(world: World) -> str:
    """Another authority and all new certificates: no pod restarts, and no record is lost."""
    hosts = _broker_hosts(world)
    before, runs = shown(world, hosts), _runs(world)
    with world.load() as load:
        begun_s = time.monotonic()
        settle_s = 120  # more than a kubelet takes to bring a changed ConfigMap to its pods
        world.upgrade(security__certificates__generation="2", security__certificates__settleSeconds=f"{settle_s}")
        assert before == shown(world, hosts), "certificates are replaced once all pods trust the new authority"
        time.sleep(settle_s)  # a fixed time, not a wait for a state
        world.cluster.kubectl(
            "create", "job", "--from", f"cronjob/{RELEASE}-certificates", f"renewal-{time.time():.0f}"
        )
        made_s = time.monotonic() - begun_s

        def all_changed() -> bool:
            return not set(before) & set(shown(world, hosts))

        rotated_s = wait_for("a new certificate at every broker", _ROTATED_S, all_changed, pause_s=2.0)
        report = load.end()
    kept = no_record_lost(report)
    assert _runs(world) == runs, "a pod was restarted"
    world.wait_until_in_sync()
    longest_s = report["longest_wait_s"]
    world.numbers["another authority under load, longest pause"] = f"{longest_s:.2f} s; {kept}"
    limit_s = pause_s_max(_PAUSE_S_MAX)
    assert longest_s <= limit_s, f"{kept}; but of {limit_s:.1f} s the longest waits were {report['longest_waits']}"
    return (
        f"{kept}; longest pause {longest_s:.2f} s; upgrade and wait took {made_s:.0f} s, the renewal {rotated_s:.0f} s"
    )


def issuer_replaces_certificates_under_load(world: World) -> str:
    """cert-manager replaces all certificates: no pod restarts, and no record is lost."""
    hosts = _broker_hosts(world)
    before, runs = shown(world, hosts), _runs(world)
    with world.load() as load:
        world.upgrade(security__certificates__days="60")

        def all_changed() -> bool:
            return not set(before) & set(shown(world, hosts))

        rotated_s = wait_for("a new certificate at every broker", _ROTATED_S, all_changed, pause_s=2.0)
        report = load.end()
    kept = no_record_lost(report)
    assert _runs(world) == runs, "a pod was restarted"
    world.wait_until_in_sync()
    longest_s = report["longest_wait_s"]
    world.numbers["certificates of cert-manager replaced under load, longest pause"] = f"{longest_s:.2f} s; {kept}"
    assert longest_s <= pause_s_max(_PAUSE_S_MAX), f"{kept}; the longest waits were {report['longest_waits']}"
    return f"{kept}; longest pause {longest_s:.2f} s; the renewal took {rotated_s:.0f} s"


def other_pods_reach_client_ports_only(world: World) -> str:
    """The network lets a pod of no service connect to the ports for clients and metrics, and to no other port."""
    broker = f"{RELEASE}-broker-0.{RELEASE}-broker-headless"
    zookeeper = f"{RELEASE}-zookeeper-1.{RELEASE}-zookeeper-headless"
    (controller, *_) = world.cluster.objects("pods", "-l", _COMPONENT.format("controller"))["items"]
    address = controller["status"]["podIP"]
    open_ports = [(broker, 9392), (broker, 9492), (f"{RELEASE}-admin", 9394), (f"{RELEASE}-admin", 9494)]
    open_ports += [(broker, 9292), (address, 9293)]
    closed_ports = [(broker, 9692), (broker, 9592), (address, 9693), (address, 9593)]
    closed_ports += [(zookeeper, 2281), (zookeeper, 2888), (zookeeper, 3888)]
    asked = [f"{host}:{port}" for host, port in (*open_ports, *closed_ports)]
    said = dict(line.split() for line in in_client(world, "python", "-c", _CONNECT, *asked).splitlines())
    wanted = {name: "open" if place < len(open_ports) else "closed" for place, name in enumerate(asked)}
    assert said == wanted, said
    return ", ".join(f"{name} {state}" for name, state in said.items())


def plain_release_becomes_secure(world: World) -> str:
    """A plain release with data becomes secure by the upgrades of docs/kubernetes.md, and loses no record."""
    _begin_plain(world)
    base = {**SECURE, "security.authorization.enabled": "false", "zookeeper.tls.enforce": "false"}
    kept, longest_s = [], 0.0
    first, second, third, fourth = ({**base, **step} for step in _STEPS)
    with world.load() as load:
        for step in (first, second):
            world.use(step)
            world.upgrade()
            world.wait_until_in_sync()
        report = load.end()
    kept.append(no_record_lost(report))
    longest_s = report["longest_wait_s"]
    values = basics.values_of(world, "kept")
    world.secure = True
    world.client()
    rights = ("--allow", "read", "--allow", "write", "--topic", "load")
    world.cli("acl", "add", "--principal", principal(world), *rights)
    with world.load() as load:
        world.use(third)
        world.upgrade()
        world.wait_until_in_sync()
        closed = world.cli("zookeeper", "close", timeout_s=120)
        world.use(fourth)
        world.upgrade()
        world.wait_until_in_sync()
        report = load.end()
    kept.append(no_record_lost(report))
    longest_s = max(longest_s, report["longest_wait_s"])
    assert basics.values_of(world, "kept") == values
    caller_without_rights_is_refused(world)
    zookeeper_refuses_other_pods(world)
    world.numbers["plain to secure by four upgrades, longest pause"] = f"{longest_s:.2f} s; {'; '.join(kept)}"
    return f"{'; '.join(kept)}; longest pause {longest_s:.2f} s; {closed.strip().splitlines()[-1]}"


def _begin_plain(world: World) -> None:
    """A new plain release with records, which replaces the release of earlier scenarios."""
    world.begin()
    world.secure = False
    world.use({})
    world.client()
    world.install()
    basics.records_go_through(world)


def in_client(world: World, *command: str, stdin: str | None = None) -> str:
    """The output of a command in the client pod."""
    return world.cluster.kubectl("exec", "-i", CLIENT, "--", *command, stdin=stdin)


def refusal(world: World, line: str) -> str:
    """The error of a shell line in the client pod, which must fail."""
    try:
        said = in_client(world, "sh", "-c", line)
    except CommandError as error:
        return str(error).strip().splitlines()[-2 if str(error).strip().endswith("code 1") else -1]
    raise AssertionError(f"not refused: {line}: {said[:300]}")


def _broker_hosts(world: World) -> list[str]:
    domain = f"{RELEASE}-broker-headless.{world.cluster.namespace}.svc.cluster.local"
    return [f"{name}.{domain}" for name in sorted(world.broker_pods())]


def shown(world: World, hosts: list[str]) -> list[str]:
    """The fingerprint of the certificate that each broker shows."""
    return in_client(world, "python", "-c", _SHOWN, *hosts).split()


def _runs(world: World) -> dict[str, Any]:
    """The uid of every pod, with the restarts of its containers."""
    pods = world.cluster.objects("pods", "-l", f"app.kubernetes.io/instance={RELEASE}")["items"]
    return {
        pod["metadata"]["uid"]: [status["restartCount"] for status in pod["status"].get("containerStatuses", [])]
        for pod in pods
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "certificates"
    }

# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper does not bypass the rights of the cluster: sessions without the right certificate, the ACL of every node.

A tree is opened and closed while the cluster runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE
from tidemark.cli.app import app
from tidemark.client import AdminClient, Consumer, Producer, TlsFiles
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.local.ports import HeldPorts
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ErrorCode,
    PartitionReassignment,
    TidemarkError,
    TopicPartition,
)
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.closing import tree_of
from tidemark.zookeeper.security.access import closed_acl, open_acl
from tidemark.zookeeper.security.tls import ZooKeeperTls
from tidemark.zookeeper.store import ZooKeeperMetadataStore
from typer.testing import CliRunner

from tests.integration.harness.beside import Beside
from tests.integration.harness.certificates import signed_by
from tests.integration.harness.closed_tree import Walk, acls_of, kazoo_with, open_nodes
from tests.integration.harness.metrics import samples
from tests.integration.harness.numbers_load import NumbersLoad
from tests.integration.harness.waiting import wait_for
from tests.refusals import raises_code

HOST = "127.0.0.1"
CALL_S = 30.0
NEEDS_CERTIFICATE = "accepts only sessions with a certificate: set zookeeper.tls.ca.file"
SUBJECT = "CN=services,O=local"
CLOSED = closed_acl(SUBJECT)


def certificates_of(cluster: LocalCluster) -> Path:
    return cluster.directory / "certs"


def service_files(cluster: LocalCluster) -> TlsFiles:
    return Authority.load(certificates_of(cluster)).files("admin")


@pytest.mark.usefixtures("as_user")
def test_every_node_of_a_clusters_life_is_closed(secure: LocalCluster) -> None:
    with Walk(secure.zookeeper.connect, service_files(secure)) as walk, AdminClient(secure.bootstrap) as admin:
        live_through_everything(secure, admin, walk)
    assert [path for path, acl in walk.acls.items() if acl != CLOSED] == []
    for path in (
        "/",
        "/brokers/ids/0",
        "/brokers/topics/life/0/leaderAndISR",
        "/brokers/topics/__consumer_offsets",
        "/config/topics/life",
        "/controller",
        "/admin/reassign_partitions",
        "/admin/restart_claim",
        "/admin/requests",
        "/zookeeper/quota",
    ):
        assert path in walk.acls


def live_through_everything(cluster: LocalCluster, admin: AdminClient, walk: Walk) -> None:
    admin.create_topic("life", partitions=2, replication_factor=2, configs={"min.insync.replicas": "1"})
    with Producer(cluster.bootstrap) as producer:
        producer.send("life", b"record", partition=0).result(CALL_S)
    with Consumer(cluster.bootstrap, group="readers", offset_reset="earliest") as consumer:
        consumer.subscribe(["life"])
        assert next(iter(consumer)).value == b"record"
        consumer.commit()
    for resource in (ConfigResource(ConfigKind.TOPIC, "life"), ConfigResource(ConfigKind.BROKER, "0")):
        setting = "retention.ms" if resource.kind is ConfigKind.TOPIC else "log.level"
        admin.alter_configs(resource, {setting: "100000" if setting == "retention.ms" else "debug"})
        admin.alter_configs(resource, delete=[setting])
    partition = TopicPartition("life", 0)
    replicas = admin.describe_topics(["life"])[0].partitions[0].assigned_replicas
    others = (*(BrokerId(one) for one in range(3) if one not in replicas), replicas[0])
    move = PartitionReassignment(partition, others)
    cluster.pause(broker_name(others[0]))  # so that the walk sees nodes of the reassignment
    altered = admin.alter_partition_reassignments([move])
    assert [one.error for one in altered.outcomes] == [None]
    wait_for(lambda: "/admin/reassign_partitions" in walk.acls, "the walk has seen the move")
    cluster.resume(broker_name(others[0]))
    wait_for(lambda: not admin.list_partition_reassignments().moves, "the move ends", timeout_s=60)
    wait_for(lambda: admin.obstacles_to_restart(0, claim=True) == [], "broker 0 may restart", timeout_s=60)
    admin.elect_leaders(ElectionKind.PREFERRED, topics=["life"])
    admin.create_topic("short", partitions=1, replication_factor=1)
    admin.delete_topic("short")
    wait_for(lambda: "short" not in admin.list_topics(), "the topic is deleted", timeout_s=60)


async def refusal(connect: str, files: TlsFiles | None) -> str:
    """The error of a session with these files."""
    tls = None if files is None else ZooKeeperTls(files)
    store = ZooKeeperMetadataStore(connect, 6000, SystemClock(), tls)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE) as raised:
        await store.start()
    return raised.value.message


async def test_sessions_without_the_right_certificate_are_refused_with_a_reason(
    secure: LocalCluster, tmp_path: Path
) -> None:
    connect, files = secure.zookeeper.connect, service_files(secure)
    other = Authority.create(tmp_path / "other", "local").issue_service(Role.BROKER, "0", [HOST])
    late = signed_by(certificates_of(secure), tmp_path / "early", valid_days=(0.003, 1))
    cases: dict[str, tuple[str, TlsFiles | None]] = {
        "no server answered": (connect, None),
        f"zookeeper.tls.ca.file ({other.ca}) does not accept": (connect, files._replace(ca=other.ca)),
        f"may not accept zookeeper.tls.certificate.file ({other.certificate})": (
            connect,
            other._replace(ca=files.ca),
        ),
        f"may not accept zookeeper.tls.certificate.file ({late.certificate})": (connect, late),
        "closed to certificates with the subject CN=client-dev": (connect, secure.client_files),
    }
    reasons = await asyncio.gather(*(refusal(*case) for case in cases.values()))
    for expected, reason in zip(cases, reasons, strict=True):
        assert expected in reason


async def test_a_server_whose_certificate_has_another_name_is_refused(secure: LocalCluster, tmp_path: Path) -> None:
    """The certificate has 127.0.0.1 and localhost; another address of this machine reaches a server with it, too."""
    other = secure.zookeeper.connect.replace(HOST, "127.0.0.1.nip.invalid")
    files = service_files(secure)
    store = ZooKeeperMetadataStore(other, 6000, SystemClock(), ZooKeeperTls(files))
    resolved = [("127.0.0.1.nip.invalid", HOST, secure.zookeeper.port)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tidemark.zookeeper.sessions.servers.Servers._resolved", lambda _: list(resolved))
        with pytest.raises(TidemarkError, match=r"the certificate of 127.0.0.1.nip.invalid:\d+ has another name"):
            await store.start()


def test_a_user_can_read_create_change_and_delete_nothing(secure: LocalCluster) -> None:
    with kazoo_with(secure.zookeeper.connect, secure.client_files) as user:
        attacks: dict[str, Any] = {
            "ask": lambda: user.exists("/controller"),
            "read": lambda: user.get("/brokers/ids/0"),
            "list": lambda: user.get_children("/brokers/topics"),
            "create": lambda: user.create("/controller_of_mine"),
            "create below": lambda: user.create("/admin/delete_topics/life"),
            "set": lambda: user.set("/controller_epoch", b"{}"),
            "delete": lambda: user.delete("/controller"),
            "take over": lambda: user.set_acls("/", OPEN_ACL_UNSAFE),
            "fill": lambda: user.create("/zookeeper/quota/mine"),
        }
        assert [name for name, attack in attacks.items() if not is_refused(attack)] == []


def is_refused(attack: Callable[[], object]) -> bool:
    try:
        attack()
    except NoAuthError:
        return True
    return False


def nodes_open(cluster: LocalCluster, name: str) -> float:
    """The metric of a service: 1 if the tree is open, as far as the service knows."""
    return samples(cluster, name)["tidemark_zookeeper_nodes_open"]


class Topics(Beside):
    """Creates topics on its own thread until `stop`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.made = 0
        self._bootstrap = cluster.bootstrap
        super().__init__()

    def run(self) -> None:
        with AdminClient(self._bootstrap) as admin:
            while not self.stopping.wait(0.1):
                admin.create_topic(f"meanwhile-{self.made}", partitions=1, replication_factor=3)
                self.made += 1


def tidemark(cluster: LocalCluster, *arguments: str) -> str:
    files = service_files(cluster)
    options = ["--connect", cluster.zookeeper.connect, "--ca-file", files.ca]
    options += ["--certificate-file", files.certificate, "--key-file", files.key]
    ran = CliRunner().invoke(app, ["zookeeper", *arguments, *options])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran.stdout


@pytest.mark.usefixtures("as_user")
def test_a_tree_is_opened_and_closed_again_under_load_without_a_lost_record(secure: LocalCluster) -> None:
    connect, files = secure.zookeeper.connect, service_files(secure)
    with AdminClient(secure.bootstrap) as admin, kazoo_with(connect, files) as client:
        admin.create_topic("migrated", partitions=3, replication_factor=3, configs={"min.insync.replicas": "2"})
        with NumbersLoad(secure.bootstrap, "migrated", 3) as load:
            wait_for(lambda: len(load.acknowledged) > 30 or load.failure is not None, "the load runs")
            assert "of which 0 would change" in tidemark(secure, "close", "--dry-run")
            assert "open to every session" in tidemark(secure, "open")
            acls = acls_of(client)
            assert {path for path, acl in acls.items() if set(acl) != set(open_acl(SUBJECT))} == set()
            admin.create_topic("open", partitions=1, replication_factor=3)
            assert "/brokers/topics/open" in open_nodes(acls_of(client))
            assert {nodes_open(secure, name) for name in secure.names} == {1}
            assert "of which 0 would change" not in tidemark(secure, "close", "--dry-run")
            assert open_nodes(acls_of(client)) != [], "a dry run changes nothing"
            with Topics(secure) as topics:
                assert f"closed for {SUBJECT}" in tidemark(secure, "close")
            assert topics.made > 0
            assert [path for path, acl in acls_of(client).items() if acl != CLOSED] == []
            assert {nodes_open(secure, name) for name in secure.names} == {0}
            assert ": 0 nodes changed" in tidemark(secure, "close")
            before = len(load.acknowledged)
            wait_for(lambda: len(load.acknowledged) > before + 30 or load.failure is not None, "the load continues")
    load.assert_nothing_lost_or_twice()


def registration(broker_id: int) -> BrokerRegistration:
    return BrokerRegistration(BrokerId(broker_id), HOST, 9192 + broker_id, rack="", directory_ids=("d",), boot_id="b")


async def register(store: ZooKeeperMetadataStore, broker_id: int) -> None:
    await store.register_broker(registration(broker_id), clean=True, locked_directory_ids=frozenset())


async def test_services_move_to_tls_one_by_one_and_the_tree_is_closed_when_all_have(tmp_path: Path) -> None:
    """The steps of docs/security.md: a second port, services that move, the command, enforcement."""
    authority = Authority.create(tmp_path / "certs", "local")
    certificate, root = authority.issue_zookeeper("1", [HOST]), "/tidemark/shop"
    files = authority.issue_service(Role.BROKER, "1", [HOST])
    ports = HeldPorts()
    ports.take("plain", 0)
    ports.hand_over()
    plain = f"{HOST}:{ports['plain']}"
    old = ZooKeeperMetadataStore(plain + root, 6000, SystemClock())
    with ZooKeeperProcess(tmp_path / "zookeeper", tls=certificate, plain_port=ports["plain"], enforced=False) as server:
        new = ZooKeeperMetadataStore(server.connect + root, 6000, SystemClock(), ZooKeeperTls(files))
        await old.start()
        await old.create_cluster_id()
        await register(old, 0)
        await new.start()
        await register(new, 1)
        await both_work(old, new)
        async with tree_of(server.connect + root, ZooKeeperTls(files)) as tree:
            with pytest.raises(TidemarkError, match="nothing was changed: broker 0 would lose access"):
                await tree.close(lambda _: None)
            assert not await tree.closed()
            await both_work(old, new)
            await old.stop()
            assert await tree.close(lambda _: None) > 10
        async with tree_of(server.connect + "/mistyped", ZooKeeperTls(files)) as tree:
            with pytest.raises(TidemarkError, match="no cluster at /mistyped"):
                await tree.close(lambda _: None)
        await new.begin_draining([BrokerId(3)])
        with kazoo_with(server.connect, files) as client:
            assert [path for path, acl in acls_of(client).items() if acl != CLOSED] == []
        assert NEEDS_CERTIFICATE in await refusal(plain + root, None)
    with ZooKeeperProcess(tmp_path / "zookeeper", server.port, tls=certificate, plain_port=ports["plain"]):
        assert NEEDS_CERTIFICATE in await refusal(f"{plain}/not-closed", None)
        await new.new_session()  # the old session may have expired meanwhile
        assert set(await new.draining_brokers()) == {3}
    await new.stop()
    ports.release()


async def both_work(old: ZooKeeperMetadataStore, new: ZooKeeperMetadataStore) -> None:
    """Each can change nodes that the other made: a service with TLS does not close an open tree by itself."""
    assert set(await old.live_brokers()) == set(await new.live_brokers()) == {0, 1}
    for maker, user, broker_id in ((old, new, 1), (new, old, 0)):
        await maker.begin_draining([BrokerId(broker_id)])
        await user.end_draining([BrokerId(broker_id)])

# SPDX-License-Identifier: Apache-2.0
"""Brokers that must not start: each ends with status 1, one line in its log, and the reason as termination message."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.local.ports import HOST, HeldPorts
from tidemark.local.process import ServiceProcess

from tests.integration.harness.waiting import wait_for

END_S = 60.0
SOON_MS = "1500"
"""Limit of the check of an address at which the broker cannot be reached."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Brokers 0 and 1, which run during all tests."""
    with LocalCluster(tmp_path_factory.mktemp("two"), brokers=2, controllers=1) as started:
        yield started


class Newcomer:
    """A broker that wants to join the cluster."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.log_dir = directory / "data"
        self.message = directory / "termination-log"
        self.message.touch()
        self.ports = HeldPorts()
        self.port = self.ports.take("newcomer")
        self.ports.take("newcomer metrics")
        self.ports.take("unused")
        self.ports.hand_over()
        self.flags = {
            "broker.id": "2",
            "zookeeper.connect": cluster.zookeeper.connect,
            "listeners": f"{HOST}:{self.port}",
            "metrics.listeners": f"{HOST}:{self.ports['newcomer metrics']}",
            "log.dirs": str(self.log_dir),
            "advertised.check.timeout.ms": "20000",  # any machine reaches an address of this process in time
            "termination.message.path": str(self.message),
        }
        self._log = directory / "log"
        self.process: ServiceProcess | None = None

    def start(self) -> ServiceProcess:
        arguments = [part for key, value in self.flags.items() for part in (f"--{key}", value)]
        self.process = ServiceProcess("newcomer", "tidemark.broker", arguments, log=self._log, environment={})
        self.process.start()
        return self.process

    def refused(self, status: int = 1) -> str:
        """The termination message of a broker that has ended with that status."""
        process = self.start()
        assert process.wait(END_S), process.tail()
        assert process.exit_status == status, process.tail()
        (message,) = self.message.read_text().splitlines()
        assert message.partition(": ")[2] in self._log.read_text().replace('\\"', '"')
        errors = [line for line in self._log.read_text().splitlines() if '"level": "error"' in line]
        assert status != 1 or len(errors) == 1
        assert "Traceback" not in self._log.read_text()
        return message

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.ports.release()


@pytest.fixture
def newcomer(two: LocalCluster, tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(two, tmp_path)
    yield made
    made.end()
    for name in two.names:
        assert two.process(name).running, f"{name} must live on"


def test_a_volume_of_another_cluster_is_refused(two: LocalCluster, newcomer: Newcomer) -> None:
    newcomer.flags["zookeeper.connect"] += "/other"
    process = newcomer.start()
    wait_for(lambda: (newcomer.log_dir / "meta.json").exists(), "the volume belongs to the other cluster")
    process.kill()
    before = (newcomer.log_dir / "meta.json").read_bytes()
    newcomer.flags["zookeeper.connect"] = two.zookeeper.connect
    message = newcomer.refused()
    assert f"the start failed: INVALID_CONFIG: the log directory {newcomer.log_dir} belongs to cluster " in message
    assert "correct zookeeper.connect or log.dirs" in message
    assert (newcomer.log_dir / "meta.json").read_bytes() == before


def test_a_volume_of_another_broker_is_refused(two: LocalCluster, newcomer: Newcomer) -> None:
    newcomer.log_dir.mkdir()
    shutil.copy(two.directory / broker_name(1) / "meta.json", newcomer.log_dir)
    message = newcomer.refused()
    assert "INVALID_CONFIG" in message
    assert "belongs to broker 1, this is broker 2: correct broker.id or log.dirs" in message


def test_a_volume_that_a_living_broker_holds_is_refused(two: LocalCluster, newcomer: Newcomer) -> None:
    newcomer.flags |= {"broker.id": "1", "log.dirs": str(two.directory / broker_name(1))}
    assert "is locked by another process: stop that broker first" in newcomer.refused()


def test_the_id_of_a_living_broker_is_refused(two: LocalCluster, newcomer: Newcomer) -> None:
    newcomer.flags["broker.id"] = "1"
    message = newcomer.refused()
    assert message.startswith("the start failed: BROKER_ID_TAKEN: broker.id 1 is registered by ")
    assert two.address(broker_name(1)) in message
    assert "give this broker another id, or stop the other broker" in message
    assert not (newcomer.log_dir / "meta.json").exists(), "another id can use the new directory"


def test_an_unreachable_advertised_address_is_refused(newcomer: Newcomer) -> None:
    newcomer.flags["advertised.check.timeout.ms"] = SOON_MS
    newcomer.flags["advertised.listeners"] = f"{HOST}:{newcomer.ports['unused']}"
    message = newcomer.refused()
    assert "ADVERTISED_ADDRESS_UNREACHABLE" in message
    assert "no process listens there" in message


def test_an_advertised_name_that_dns_does_not_know_is_refused(newcomer: Newcomer) -> None:
    newcomer.flags["advertised.check.timeout.ms"] = SOON_MS
    newcomer.flags["advertised.listeners"] = f"tidemark-2.no-such-service.invalid:{newcomer.port}"
    assert "the name tidemark-2.no-such-service.invalid cannot be resolved" in newcomer.refused()


def test_the_advertised_address_of_another_broker_is_refused(two: LocalCluster, newcomer: Newcomer) -> None:
    newcomer.flags["advertised.check.timeout.ms"] = SOON_MS
    newcomer.flags["advertised.listeners"] = two.address(broker_name(0))
    assert f"another process answers at {two.address(broker_name(0))}" in newcomer.refused()


def test_a_wrong_address_is_reported_at_once_without_zookeeper(newcomer: Newcomer) -> None:
    newcomer.flags["advertised.check.timeout.ms"] = SOON_MS
    newcomer.flags["zookeeper.connect"] = f"{HOST}:{newcomer.ports['unused']}"
    newcomer.flags["advertised.listeners"] = f"{HOST}:{newcomer.ports['unused']}"
    assert "ADVERTISED_ADDRESS_UNREACHABLE" in newcomer.refused()


def test_a_port_that_is_taken_is_refused(two: LocalCluster, newcomer: Newcomer) -> None:
    newcomer.flags["listeners"] = two.address(broker_name(0))
    assert "cannot listen there; is the port taken" in newcomer.refused()


def test_a_log_directory_that_cannot_be_one_is_refused(newcomer: Newcomer) -> None:
    newcomer.log_dir.write_text("a file")
    assert "STORAGE_ERROR" in newcomer.refused()


def test_wrong_settings_are_the_termination_message_too(newcomer: Newcomer) -> None:
    newcomer.flags["num.read.threads"] = "0"
    assert "num.read.threads" in newcomer.refused(status=2)


def test_a_start_waits_for_an_unresolved_zookeeper_reports_this_and_obeys_a_stop(newcomer: Newcomer) -> None:
    newcomer.flags["zookeeper.connect"] = "zookeeper-0.no-such-service.invalid:2181"
    process = newcomer.start()
    wait_for(
        lambda: "zookeeper-0.no-such-service.invalid cannot be resolved" in process.tail(),
        "the broker logs the unresolved name",
    )
    assert process.running
    process.signal(signal.SIGTERM)
    assert process.wait(END_S), process.tail()
    assert process.exit_status == 0
    assert newcomer.message.read_text() == ""

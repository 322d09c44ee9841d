# SPDX-License-Identifier: Apache-2.0
"""One cluster for all tests that only use it; tests that damage a cluster get the parts to start their own."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.rpc.security.paths import FILE_VARIABLES

from tests.integration.harness import patience
from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.hand_controller import Brokers, HandController, controller_of
from tests.integration.harness.warm_service import warm_services
from tests.integration.harness.zookeeper_root import own_zookeepers, roots_of

_SHARED: Final = ("cluster", "secure")
"""Clusters of the whole session: even an idle one takes a twelfth of a core."""
_started: dict[str, LocalCluster] = {}
_last_users: dict[str, int] = {}
"""The place in the order of collection of the last test in a file that uses each of them."""
_places: dict[pytest.Item, int] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Collect the files that use `secure` first, and those that use no shared cluster last; else the order stays."""
    shared = {item.path for item in items if _shared_by(item)}
    secure = {item.path for item in items if "secure" in _shared_by(item)}
    items.sort(key=lambda item: (item.path not in secure, item.path not in shared))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the last users of the shared clusters: fixtures of a file live as long as the file."""
    users = {name: {item.path for item in session.items if name in _shared_by(item)} for name in _SHARED}
    for place, item in enumerate(session.items):
        _places[item] = place
        _last_users.update({name: place for name in _SHARED if item.path in users[name]})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Stop each shared cluster that no later test of this worker uses: files come in the order of collection."""
    yield
    if nextitem is not None:
        for name in [name for name in _started if _last_users.get(name, -1) < _places[nextitem]]:
            _started.pop(name).stop()


def _shared_by(item: pytest.Item) -> list[str]:
    """The shared clusters that a test uses; some modules have a cluster of their own under the same name."""
    if not isinstance(item, pytest.Function):
        return []
    found = item._fixtureinfo.name2fixturedefs
    return [name for name in _SHARED if name in found and found[name][-1].scope == "session"]


@pytest.fixture(scope="session", autouse=True)
def commands_heed_hang_up() -> None:
    """Under nohup, processes that tests start would ignore SIGHUP, too. This process continues to ignore it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # a new program begins without the handlers of its parent


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Services start without the time that their imports take."""
    with warm_services():
        yield


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers, two controllers and an admin service; each test leaves all of them ready."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as started:
        _started["cluster"] = started
        yield started


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[AdminClient]:
    """A client of `cluster`, or of the module's own cluster of that name."""
    with AdminClient(cluster.admin_address) as client:
        yield client


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster as `cluster`, with TLS for every connection; leave it healthy."""
    with LocalCluster(tmp_path_factory.mktemp("secure"), secure=True) as started:
        _started["secure"] = started
        yield started


@pytest.fixture
def as_user(secure: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without TLS files of their own take those of the environment."""
    for variable, path in zip(FILE_VARIABLES, secure.client_files, strict=True):
        monkeypatch.setenv(variable, path)


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers, two controllers and an admin service of the test's own; a test may leave them in any state.

    Only an ended broker is suspected: with `min.insync.replicas=1`, a follower without CPU time for 2.5 s would leave
    the ISR, and no replica could be elected after the leader's end.
    """
    patient = {"controller": {"controller.heartbeat.timeout.ms": "30000"}}
    with LocalCluster(tmp_path, brokers=2, controllers=2, settings=patient) as started:
        yield started


@pytest.fixture
def by_hand(mine: LocalCluster) -> Iterator[KazooClient]:
    """The ZooKeeper of `mine`, for manual changes."""
    with kazoo_of(mine) as client:
        yield client


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """The ZooKeeper of all tests that keep to a root of their own; not started."""
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    yield process
    process.kill()


@pytest.fixture(scope="module", autouse=True)
def zookeeper_roots(shared_zookeeper: ZooKeeperProcess) -> Iterator[None]:
    """The clusters of tests and files have roots of that ZooKeeper, those of the session a ZooKeeper each."""
    with roots_of(shared_zookeeper):
        yield


@pytest.fixture
def own_zookeeper() -> Iterator[None]:
    """Each cluster gets its own ZooKeeper, for tests that stop or suspend it."""
    with own_zookeepers():
        yield


@pytest.fixture(scope="module")
def zookeeper(shared_zookeeper: ZooKeeperProcess) -> ZooKeeperProcess:
    """A server for tests with separate roots; started again if a test has stopped the server."""
    if not shared_zookeeper.running:
        shared_zookeeper.start()
    return shared_zookeeper


@pytest.fixture
def group() -> str:
    """The id of a new group."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The file that names the directories that fail, and how, once it is there."""
    return tmp_path / "broken"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients and the command give up soon on a missing topic; for topics that never exist."""
    patience.with_topics(monkeypatch)


@pytest.fixture
def impatient_with_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients and the command give up soon on silent brokers; for addresses without a broker."""
    patience.with_brokers(monkeypatch)


@pytest.fixture
async def three(tmp_path: Path, zookeeper: ZooKeeperProcess) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path, zookeeper, 3)
    try:
        await brokers.start()
        yield brokers
    finally:
        brokers.kill_all()


@pytest.fixture
async def one(tmp_path: Path, zookeeper: ZooKeeperProcess) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path, zookeeper, 1)
    try:
        await brokers.start()
        yield brokers
    finally:
        brokers.kill_all()


@pytest.fixture
async def controller(request: pytest.FixtureRequest) -> AsyncIterator[HandController]:
    brokers = request.getfixturevalue("three" if "three" in request.fixturenames else "one")
    async with controller_of(brokers) as controller:
        yield controller

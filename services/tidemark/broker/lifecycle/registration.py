# SPDX-License-Identifier: Apache-2.0
"""The broker's registration in ZooKeeper: at the start, and again after the session expired or an operator deleted the
node (rules T1, Z3, E5, F2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.own_epoch import UNREGISTERED
from tidemark.core.replication.clean_start import DirectoryEvidence, RegistrationVerdict, judge_registration
from tidemark.core.replication.events import BrokerRegistered, SessionExpired
from tidemark.model import (
    FEATURES,
    NO_EPOCH,
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import Scheduler, StoreEvent
from tidemark.storage.directories.log_directory import PreviousDirectory
from tidemark.zookeeper.reachable import no_cluster_id
from tidemark.zookeeper.store import MetadataStore

_RETRY_MS: Final = 300
_CHECK_MS: Final = 5000
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


def boot_id() -> str:
    """The kernel's boot id; "" if the system has none; an empty id proves nothing."""
    try:
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class RegisteredLogs(Protocol):
    """The log directories, as a registration uses them; `LogManager` has the meaning of each member."""

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """Uuids of the online log directories."""

    @property
    def previous(self) -> Sequence[PreviousDirectory]:
        """The state in which the last process left each directory (rule T1)."""

    def replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        """The replicas on disk."""

    def sync(self) -> None:
        """Sync every online directory; raises STORAGE_ERROR."""

    def confirm_registration(self, broker_epoch: BrokerEpoch, boot_id: str) -> None:
        """Write the incarnation of a confirmed registration; raises DISK_FULL if the next start counts as unclean, or
        STORAGE_ERROR without a directory."""


class Registration:
    """Keeps this broker registered.

    Args:
        cluster_id: id of the cluster in the log directories; the broker registers in no other one.
        scheduler: runs the registration's coroutines and blocking work; `stop` stops the scheduler.
        on_epoch: called with every new broker epoch before the core gets it, and with -1 when a session has expired.
        boot_id: reads the kernel's boot id.
        trust_boot_id: `log.dirs.trust.boot.id`.
        check_ms: interval of the check that the node still exists.
    """

    def __init__(
        self,
        identity: BrokerRegistration,
        cluster_id: str,
        store: MetadataStore,
        logs: RegisteredLogs,
        driver: BrokerDriver,
        scheduler: Scheduler,
        on_epoch: Callable[[BrokerEpoch], None],
        *,
        trust_boot_id: bool,
        boot_id: Callable[[], str] = boot_id,
        check_ms: int = _CHECK_MS,
    ) -> None:
        self.broker_epoch = UNREGISTERED
        """Broker epoch of the last confirmed registration; kept after its session has expired."""
        self._identity = identity
        self._cluster_id = cluster_id
        self._store = store
        self._logs = logs
        self._driver = driver
        self._scheduler = scheduler
        self._on_epoch = on_epoch
        self._boot_id = boot_id
        self._trust_boot_id = trust_boot_id
        self._check_ms = check_ms
        self._expired = False
        self._unwritten = False
        """Whether a full disk refused the incarnation of the last registration."""
        self._lost = scheduler.signal()
        self._judged: tuple[RegistrationVerdict, frozenset[str]] | None = None
        store.listen(self._on_store_event)

    async def start(self) -> None:
        """Register, retrying until ZooKeeper answers; raises BROKER_ID_TAKEN or STORAGE_ERROR."""
        await self._register()
        for work in (self._keep(), self._check()):
            self._scheduler.spawn(work, self._driver.fail)

    async def stop(self) -> None:
        """Stop registering; the present registration stays."""
        await self._scheduler.stop()

    def _on_store_event(self, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_EXPIRED:
            self._expired = True
            self._end_leaderships()

    def _end_leaderships(self) -> None:
        """End all leaderships before any other step (rule F2)."""
        self._lost.set()
        self._on_epoch(UNREGISTERED)
        self._driver.submit(SessionExpired())

    async def _keep(self) -> None:
        """Register after each loss, and write a refused incarnation again: one task, since both write one file."""
        while True:
            if self._unwritten:
                await self._scheduler.wait(self._lost, self._check_ms)
            else:
                await self._lost.wait()
            if self._lost.is_set():
                await self._register()
            else:
                await self._confirm(self.broker_epoch, self._boot_id())

    async def _check(self) -> None:
        """Register again after a deletion or an edit of the node: neither ends the session, but this broker counts as
        failed.
        """
        while True:
            await self._scheduler.sleep_ms(self._check_ms)
            if self._lost.is_set():
                continue
            broker_epoch = self.broker_epoch
            try:
                live = await self._store.live_brokers()
            except TidemarkError as error:
                _log.debug("cannot check the registration", extra={"why": error.message})
                continue
            known = live.get(self._identity.broker_id)
            if self._lost.is_set() or self.broker_epoch != broker_epoch:
                continue
            if known is None:
                _log.error("the registration was deleted from ZooKeeper within the session: registering again")
                self._end_leaderships()
            elif known.broker_epoch != broker_epoch:
                why = f"broker epoch {known.broker_epoch} instead of {broker_epoch}"
                _log.error("the registration was edited in ZooKeeper: registering again", extra={"why": why})
                self._end_leaderships()

    async def _register(self) -> None:
        while True:
            try:
                # A session may have expired while the logs were opened, before this listener was added.
                if self._expired or not self._store.lease_valid_until_ms():
                    await self._store.new_session()
                    self._expired = False
                await self._attempt()
            except TidemarkError as error:
                if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                    raise
                _log.warning("not registered yet", extra={"why": error.message})
                await self._scheduler.sleep_ms(_RETRY_MS)
                continue
            if not self._expired:
                self._lost.clear()
                return

    async def _attempt(self) -> None:
        """Sync the logs, judge whether the last stop was clean, register in ZooKeeper, and submit BrokerRegistered to
        the core."""
        await self._check_cluster()
        boot = self._boot_id()
        synced = await self._scheduler.in_thread(self._sync)
        broker_id = self._identity.broker_id
        previous = (await self._store.broker_epochs()).get(broker_id)
        known = await self._known_leader_epochs()
        directory_ids = self._logs.directory_ids  # read once: a directory that fails later was judged as present
        verdict = self._judge(previous, boot, synced, frozenset(directory_ids))
        registration = BrokerRegistration(
            broker_id,
            self._identity.host,
            self._identity.port,
            rack=self._identity.rack,
            directory_ids=directory_ids,
            boot_id=boot,
            features=self._identity.features,
            endpoints=self._identity.endpoints,
        )
        broker_epoch = await self._store.register_broker(
            registration,
            clean=verdict.clean,
            flushed_kept=verdict.flushed_kept,
            crashed=verdict.crashed,
            locked_directory_ids=frozenset(directory_ids),
        )
        await self._confirm(broker_epoch, boot)
        self.broker_epoch = broker_epoch
        if self._expired:
            return  # that session has expired; the next round makes another session
        _log.info("registered", extra={"broker_epoch": broker_epoch, "clean": verdict.clean, "why": verdict.reason})
        self._on_epoch(broker_epoch)
        self._driver.submit(BrokerRegistered(broker_epoch, known))

    async def _check_cluster(self) -> None:
        """The new session may be one of another ensemble, which has the addresses or the name of the earlier one.

        A tree without an id was emptied: the broker writes no other id there, so that the tree can be restored.
        """
        found = await self._store.cluster_id()
        if not found:
            raise no_cluster_id(self._cluster_id)
        if found != self._cluster_id:
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"ZooKeeper's tree is of cluster {found} now, and this broker is of cluster {self._cluster_id}: "
                "correct zookeeper.connect, or restore the tree",
            )

    async def _confirm(self, broker_epoch: BrokerEpoch, boot: str) -> None:
        """Write the incarnation.

        Without space the broker continues, and tries again: until then the next start counts as unclean.
        """
        try:
            await self._scheduler.in_thread(partial(self._logs.confirm_registration, broker_epoch, boot))
        except TidemarkError as error:
            if error.code is not ErrorCode.DISK_FULL:
                raise
            if not self._unwritten:
                _log.error("until the disk has space, the next start counts as unclean", extra={"why": error.message})
            self._unwritten = True
        else:
            self._unwritten = False

    def _judge(
        self, previous: BrokerEpochRecord | None, boot: str, synced: bool, ours: frozenset[str]
    ) -> RegistrationVerdict:
        """Judge whether the registration is clean (rule T1).

        This process has held the locks of its directories since its first verdict. A later registration with exactly
        these directories was therefore its own, even if the answer was lost. The registration stays clean as long as
        the disks accept every flush.
        """
        directories = frozenset(previous.directory_ids) if previous is not None else frozenset()
        if self._judged is not None and directories == self._judged[1] == ours and synced:
            verdict = self._judged[0]
            if self.broker_epoch != UNREGISTERED and not (verdict.clean and not verdict.crashed):
                verdict = RegistrationVerdict(clean=True, reason="the process continued after its registration")
            return verdict
        evidence = [
            DirectoryEvidence(
                found.directory_id,
                shutdown_epoch=found.clean_broker_epoch,
                boot_id=found.incarnation[0] if found.incarnation else "",
                incarnation_epoch=found.incarnation[1] if found.incarnation else None,
                synced=synced,
            )
            for found in self._logs.previous
            if found.directory_id in ours
        ]
        verdict = judge_registration(previous, evidence, boot_id=boot, trust_boot_id=self._trust_boot_id)
        if not verdict.clean:
            _log.warning("the registration is not clean", extra={"why": verdict.reason})
        self._judged = (verdict, ours)
        return verdict

    def _sync(self) -> bool:
        try:
            self._logs.sync()
        except TidemarkError as error:
            _log.error("cannot sync a log directory", extra={"why": error.message})
            return False
        return True

    async def _known_leader_epochs(self) -> Mapping[TopicPartition, tuple[ReplicaIdentity, LeaderEpoch]]:
        """Leader epochs in ZooKeeper for the replicas on disk, except for open replicas, whose leader epochs the core
        knows (rule E5).
        """
        open_here = set(self._driver.core.queries.partitions())
        on_disk = {name: identity for name, identity in self._logs.replicas().items() if name not in open_here}
        states = await self._store.states(list(on_disk), sync=True)
        return {
            partition: (
                identity,
                states[partition].state.leader_epoch if partition in states else NO_EPOCH,
            )
            for partition, identity in on_disk.items()
        }


def identity_of(broker_id: int, host: str, port: int, rack: str, endpoints: Sequence[str] = ()) -> BrokerRegistration:
    """The part of a registration that is the same every time."""
    return BrokerRegistration(BrokerId(broker_id), host, port, rack=rack, features=FEATURES, endpoints=tuple(endpoints))

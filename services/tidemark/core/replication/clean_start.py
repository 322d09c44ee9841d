# SPDX-License-Identifier: Apache-2.0
"""Decides at registration whether the log directories have kept every record written to them (rule T1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.model import BrokerEpoch, BrokerEpochRecord


@dataclass(frozen=True, slots=True)
class DirectoryEvidence:
    """The marks that the last process has left in one log directory.

    Attributes:
        shutdown_epoch: broker epoch in clean-shutdown.json, None if there is no such file.
        boot_id: boot id in incarnation.json, "" where there is none.
        incarnation_epoch: broker epoch in incarnation.json, None where there is none.
        synced: a syncfs just before the registration reported no error.
    """

    directory_id: str
    shutdown_epoch: BrokerEpoch | None = None
    boot_id: str = ""
    incarnation_epoch: BrokerEpoch | None = None
    synced: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationVerdict:
    """Whether the start is clean, and the reason.

    Attributes:
        missing: ids of the previous log directories that do not exist now.
        flushed_kept: every previous directory is as the previous broker epoch left it, so flushed records are kept.
        crashed: a previous directory has no mark of a clean shutdown, so the ends of its logs are in doubt (rule T7).
    """

    clean: bool
    reason: str
    missing: tuple[str, ...] = ()
    flushed_kept: bool = True
    crashed: bool = False


def judge_registration(
    previous: BrokerEpochRecord | None,
    directories: Sequence[DirectoryEvidence],
    *,
    boot_id: str,
    trust_boot_id: bool,
) -> RegistrationVerdict:
    """Decide whether the registration is clean, by the evidence of the directories (rule T1).

    Args:
        previous: /brokers/epochs/<id> before this registration; None: the broker never registered.
        directories: evidence of the open log directories; new ones need no marks.
        boot_id: of the running kernel; "" if the system has none; an empty id proves nothing.
        trust_boot_id: `log.dirs.trust.boot.id`: the page cache lasts as long as this kernel.
    """
    if previous is None:
        return RegistrationVerdict(clean=True, reason="the first registration of this broker")
    present = {evidence.directory_id: evidence for evidence in directories}
    missing = tuple(directory_id for directory_id in previous.directory_ids if directory_id not in present)
    if missing:
        return RegistrationVerdict(
            clean=False,
            reason=f"log directories are missing: {', '.join(missing)}",
            missing=missing,
            flushed_kept=False,
            crashed=True,
        )
    flushed_kept = all(
        previous.broker_epoch in (present[directory_id].shutdown_epoch, present[directory_id].incarnation_epoch)
        for directory_id in previous.directory_ids
    )
    for directory_id in previous.directory_ids:
        evidence = present[directory_id]
        doubt = _doubt(evidence, previous.broker_epoch, boot_id=boot_id, trust_boot_id=trust_boot_id)
        if doubt is not None:
            reason = f"log directory {directory_id}: {doubt}"
            return RegistrationVerdict(clean=False, reason=reason, flushed_kept=flushed_kept, crashed=True)
    crashed = any(present[one].shutdown_epoch != previous.broker_epoch for one in previous.directory_ids)
    return RegistrationVerdict(
        clean=True, reason="every log directory has kept every record written to it", crashed=crashed
    )


def _doubt(
    evidence: DirectoryEvidence, previous_epoch: BrokerEpoch, *, boot_id: str, trust_boot_id: bool
) -> str | None:
    """The reason why the directory may have lost records, None if it cannot have."""
    if evidence.shutdown_epoch == previous_epoch:
        return None
    if not trust_boot_id:
        return "it was not shut down cleanly, and the boot id proves nothing here (log.dirs.trust.boot.id)"
    if evidence.incarnation_epoch != previous_epoch:
        return f"it was last used under broker epoch {evidence.incarnation_epoch}, not {previous_epoch}"
    if boot_id and not evidence.boot_id:
        return "it was not shut down cleanly, and it was offline after an error of its disk"
    if not boot_id or evidence.boot_id != boot_id:
        return "it was not shut down cleanly, and the machine has been rebooted since"
    if not evidence.synced:
        return "syncing it to disk failed"
    return None

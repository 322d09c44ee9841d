# SPDX-License-Identifier: Apache-2.0
"""Whether what a broker finds on its disks can be trusted when it registers (rule T1). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.model import BrokerEpoch, BrokerEpochRecord


@dataclass(frozen=True, slots=True)
class DirectoryEvidence:
    """What one log directory says of how the last process left it.

    Attributes:
        shutdown_epoch: broker epoch in clean-shutdown.json, None where there is none.
        boot_id: boot id in incarnation.json, "" where there is none.
        incarnation_epoch: broker epoch in incarnation.json, None where there is none.
        synced: a syncfs made just now, before registering, reported no error.
    """

    directory_id: str
    shutdown_epoch: BrokerEpoch | None = None
    boot_id: str = ""
    incarnation_epoch: BrokerEpoch | None = None
    synced: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationVerdict:
    """Clean or not, and why.

    Attributes:
        missing: the previous directories that are not there: they spare nothing.
        flushed_kept: every previous directory is there, as the previous broker epoch left it: it has what was flushed.
    """

    clean: bool
    reason: str
    missing: tuple[str, ...] = ()
    flushed_kept: bool = True


def judge_registration(
    previous: BrokerEpochRecord | None,
    directories: Sequence[DirectoryEvidence],
    *,
    boot_id: str,
    trust_boot_id: bool,
) -> RegistrationVerdict:
    """Rule T1.

    Args:
        previous: /brokers/epochs/<id> as it is before this registration; None: the broker never registered.
        directories: those that are open now; ones that were not there before need prove nothing.
        boot_id: the kernel's present one; "" where the system has none, which proves nothing.
        trust_boot_id: `log.dirs.trust.boot.id`: the page cache lives as long as this kernel.
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
            return RegistrationVerdict(clean=False, reason=reason, flushed_kept=flushed_kept)
    return RegistrationVerdict(clean=True, reason="every log directory kept all that was written to it")


def _doubt(
    evidence: DirectoryEvidence, previous_epoch: BrokerEpoch, *, boot_id: str, trust_boot_id: bool
) -> str | None:
    """Why the directory may lack something, None when it cannot."""
    if evidence.shutdown_epoch == previous_epoch:
        return None
    if not trust_boot_id:
        return "it was not shut down cleanly, and the boot id proves nothing here (log.dirs.trust.boot.id)"
    if evidence.incarnation_epoch != previous_epoch:
        return f"it was last used under broker epoch {evidence.incarnation_epoch}, not {previous_epoch}"
    if not boot_id or evidence.boot_id != boot_id:
        return "it was not shut down cleanly, and the machine has been rebooted since"
    if not evidence.synced:
        return "syncing it to disk failed"
    return None

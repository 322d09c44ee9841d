# SPDX-License-Identifier: Apache-2.0
"""Log directories that a reassignment names (rules M1, M3).

Every LeaderAndIsr to a broker names the log directory of its replica, so that a new replica is created there and an
existing one is moved there by its broker. The entry leaves its node once each of these brokers has acknowledged; a
copy from one log directory to another continues on its broker without the controller.
"""

from __future__ import annotations

from typing import Final

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.controller.reassignment import Reassignment
from tidemark.core.reassignment.request import named_log_dirs
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError

LOG_DIR_REFUSALS: Final = frozenset((ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.LOG_DIR_OFFLINE, ErrorCode.REPLICA_OFFLINE))
"""A broker adopts the partition but rejects the log directory named for its replica."""


def name_log_dirs(
    ctx: ControllerContext, one: Reassignment, partition_state: PartitionState, entry: PartitionReassignment | None
) -> None:
    """Commands name the log directories of this entry from now on; None: they name none, and none need be sent."""
    named = {} if entry is None or entry.cancel else named_log_dirs(entry)
    if named == partition_state.log_dirs:
        return
    partition_state.log_dirs = named
    one.log_dirs_known_by = set() if named else None
    one.log_dirs_refused_by.clear()
    if named:
        ctx.send_leader_and_isr(partition_state)
        ctx.dirty.add(partition_state.partition)


def note_acknowledged(ctx: ControllerContext, one: Reassignment, partition_state: PartitionState) -> None:
    """Brokers have acknowledged commands about this partition."""
    if one.log_dirs_known_by is None or partition_state.state is None:
        return
    for broker in partition_state.log_dirs:
        pending = ctx.commands.get(broker)
        if pending is not None and pending.is_acknowledged(partition_state.partition):
            one.log_dirs_known_by.add(broker)


def are_known(one: Reassignment, partition_state: PartitionState) -> bool:
    """Whether every broker has acknowledged the log directory named for it."""
    return partition_state.log_dirs.keys() <= (one.log_dirs_known_by or set())


def is_first_refusal(one: Reassignment, broker: BrokerId) -> bool:
    """Whether this refusal of a log directory has to be reported; each broker's is reported once."""
    if one.log_dirs_known_by is None or broker in one.log_dirs_refused_by:
        return False
    one.log_dirs_refused_by.add(broker)
    return True


def log_dir_refusal(broker: BrokerId, error: TidemarkError) -> TidemarkError:
    """The refusal to keep: the reassignment continues, only the log directory differs."""
    return TidemarkError(
        error.code,
        f"broker {broker} rejected the log directory named for its replica: {error.message}; the reassignment "
        "continues with a log directory that the broker chose; change it with: tidemark log-dirs move",
        {**error.metadata, "broker": str(broker)},
    )

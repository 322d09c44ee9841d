# SPDX-License-Identifier: Apache-2.0
"""Reassignments as JSON: of the command `reassign` and of the console."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.core.reassignment.progress import ReassignmentProgress
from tidemark.core.reassignment.request import ANY_LOG_DIR


def progress_json(moved: ReassignmentProgress) -> Mapping[str, object]:
    """A reassignment as JSON; null is unknown."""
    return {
        **moved.partition._asdict(),
        "original_replicas": list(moved.original),
        "target_replicas": list(moved.target),
        "assigned_replicas": list(moved.assigned),
        "adding_replicas": list(moved.adding),
        "removing_replicas": list(moved.removing),
        "replicas": [
            {"broker_id": broker, "state": str(state), "size_bytes": moved.sizes_bytes.get(broker)}
            for broker, state in sorted(moved.replicas.items())
        ],
        "state": str(moved.phase),
        "bytes_done": moved.bytes_done,
        "bytes_total": moved.bytes_total,
        "rate_bytes_per_s": moved.rate_bytes_per_s,
        "eta_s": moved.eta_s,
        "throttle_bytes_per_s": moved.throttle_bytes_per_s,
        "waiting_for": moved.waiting_for,
        "request_id": moved.request_id,
        "log_dirs": [moved.log_dirs.get(broker, ANY_LOG_DIR) for broker in moved.target],
    }

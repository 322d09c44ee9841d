# SPDX-License-Identifier: Apache-2.0
"""Counters of a producer, for an application to export."""

from __future__ import annotations

from typing import NamedTuple


class ProducerMetrics(NamedTuple):
    """Since the start, but for the buffers.

    Attributes:
        acknowledged_records, acknowledged_batches, acknowledged_bytes: what brokers have, in bytes of `batch_bytes`.
        failed_records: whose handles raise.
        refusals: answers that were no, most of which were tried again.
        waited_s: how long `send` waited for room, together.
        buffered_bytes, buffered_batches: not acknowledged yet.
    """

    acknowledged_records: int
    acknowledged_batches: int
    acknowledged_bytes: int
    failed_records: int
    refusals: int
    waited_s: float
    buffered_bytes: int
    buffered_batches: int

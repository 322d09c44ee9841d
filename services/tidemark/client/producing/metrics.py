# SPDX-License-Identifier: Apache-2.0
"""Counters of a producer that an application can export."""

from __future__ import annotations

from typing import NamedTuple


class ProducerMetrics(NamedTuple):
    """Counts since the start of the producer, and the current size of its buffer.

    Attributes:
        acknowledged_records: records that the cluster acknowledged.
        acknowledged_batches: batches that the cluster acknowledged.
        acknowledged_bytes: their bytes, counted as for `batch_bytes`.
        failed_records: records whose handles raise an error.
        refusals: refused attempts of batches, most of which were retried.
        waited_s: time that calls of `send` waited for a full buffer, in total.
        buffered_bytes: bytes of records without outcome.
        buffered_batches: batches without outcome.
        throttled_s: sum of the waits that brokers requested, because of quotas.
    """

    acknowledged_records: int
    acknowledged_batches: int
    acknowledged_bytes: int
    failed_records: int
    refusals: int
    waited_s: float
    buffered_bytes: int
    buffered_batches: int
    throttled_s: float = 0.0

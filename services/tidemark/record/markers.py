# SPDX-License-Identifier: Apache-2.0
"""Markers: the control batches that end a transaction in a partition (rules X1, X2; docs/formats.md).

A marker is a batch of bytes with one row, in typed topics too. Its producer id is the transaction's, its producer
epoch is one above the transaction's (KIP-890), and it has no sequence.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Attributes, Batch, Envelope

MARKER_VERSION: Final = 0
_KEY: Final = struct.Struct("<HH")
_VALUE: Final = struct.Struct("<Hi")
_ABORT: Final = 0
_COMMIT: Final = 1


class EndMarker(NamedTuple):
    """The decision that a marker states.

    Attributes:
        commit: whether the transaction is committed; else it is aborted.
        coordinator_epoch: leader epoch of the coordinator's partition of __transaction_state.
    """

    commit: bool
    coordinator_epoch: int


def build_marker(*, producer_id: int, producer_epoch: int, marker: EndMarker, timestamp_us: int) -> bytes:
    """The batch of a marker as the coordinator's request makes it: base_offset 0, leader_epoch -1.

    Args:
        producer_id: producer id of the transaction.
        producer_epoch: epoch of the transaction + 1.
        marker: the content.
        timestamp_us: clock of the leader, since 1970, UTC.
    """
    # Imported here only: services without batches import this module.
    from tidemark.record.payload import build_own_batch

    key = _KEY.pack(MARKER_VERSION, _COMMIT if marker.commit else _ABORT)
    value = _VALUE.pack(MARKER_VERSION, marker.coordinator_epoch)
    return build_own_batch(
        [key],
        [value],
        timestamp_us,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=Attributes.CONTROL | Attributes.PENDING,
    )


def may_be_marker(envelope: Envelope) -> bool:
    """Whether the batch is a control batch of a transaction; `read_marker` gives its content."""
    return envelope.is_control and envelope.is_pending and envelope.producer_id >= 0


def read_marker(batch: Batch) -> EndMarker | None:
    """The content of a marker; None for every other batch, and for a control batch of an unknown type.

    A later version may add bytes to the key and to the value.

    Raises:
        TidemarkError: INVALID_PAYLOAD for a control batch of a transaction that is not a marker.
    """
    if not may_be_marker(batch.envelope):
        return None
    from tidemark.record.checks import read_validated

    rows = read_validated(batch)
    key, value = (rows.column(0)[0].as_py(), rows.column(1)[0].as_py()) if rows.num_rows == 1 else (None, None)
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD,
            "a control batch of a transaction must have one row with the key and value of a marker",
        )
    _, kind = _KEY.unpack_from(key)
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return EndMarker(kind == _COMMIT, coordinator_epoch) if kind in (_ABORT, _COMMIT) else None

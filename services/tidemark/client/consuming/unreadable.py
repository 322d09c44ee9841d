# SPDX-License-Identifier: Apache-2.0
"""The error of a batch that no replica can make readable, with the place of the batch."""

from __future__ import annotations

from typing import Final

from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import Envelope

_OF_A_PRODUCER: Final = (ErrorCode.INVALID_PAYLOAD, ErrorCode.INVALID_BATCH, ErrorCode.RECORD_COUNT_MISMATCH)


def placed(error: TidemarkError, where: TopicPartition, batch: Envelope | int) -> TidemarkError:
    """The error of reading a batch, with its offset, and the offset that skips a batch that a producer made so.

    Other errors, such as INCOMPATIBLE_SCHEMA, state what the reader has to change.

    Args:
        error: the error.
        where: partition of the batch.
        batch: envelope of the batch; its offset, if the envelope itself is damaged.
    """
    if error.code is not ErrorCode.CORRUPT_BATCH and error.code not in _OF_A_PRODUCER:
        return error
    advice = ""
    if isinstance(batch, Envelope):
        if error.code in _OF_A_PRODUCER:
            advice = f"; seek to offset {batch.next_offset} to skip the batch"
        batch = batch.base_offset
    sentence = f"{where}: the batch at offset {batch} cannot be read: {error.message}{advice}"
    facts = {"topic": where.topic, "partition": str(where.partition), "offset": str(batch)}
    return TidemarkError(error.code, sentence, {**error.metadata, **facts})

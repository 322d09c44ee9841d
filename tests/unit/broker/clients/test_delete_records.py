# SPDX-License-Identifier: Apache-2.0
"""Requests to delete records that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import delete_records_pb2 as pb


async def test_records_of_the_internal_topic_are_not_deleted() -> None:
    untouched: Any = None
    deletions = DeleteRecords(untouched, untouched, untouched, lambda: 0)
    with pytest.raises(TidemarkError, match="internal topic") as refused:
        await deletions.delete(pb.DeleteRecordsRequest(topic="__consumer_offsets", before_offset=-1))
    assert refused.value.code is ErrorCode.INVALID_REQUEST

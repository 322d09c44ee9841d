# SPDX-License-Identifier: Apache-2.0
"""Requests to delete records that change nothing."""

from __future__ import annotations

from typing import Any

from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.model import ErrorCode
from tidemark.v1 import delete_records_pb2 as pb

from tests.refusals import raises_code


async def test_records_of_the_internal_topic_are_not_deleted() -> None:
    untouched: Any = None
    deletions = DeleteRecords(untouched, untouched, untouched, lambda: 0)
    with raises_code(ErrorCode.INVALID_REQUEST, "internal topic"):
        await deletions.delete(pb.DeleteRecordsRequest(topic="__consumer_offsets", before_offset=-1))

# SPDX-License-Identifier: Apache-2.0
"""Records that are deleted, for the blocking admin client."""

from __future__ import annotations

from tidemark.client.aio.admin.records import DeletedRecords
from tidemark.client.aio.admin.records import RecordCalls as AsyncRecordCalls
from tidemark.client.sync.event_loop_thread import BackgroundLoop


class RecordCalls:
    """Part of the blocking `AdminClient`; see the async one for what arguments mean."""

    _client: AsyncRecordCalls
    _background: BackgroundLoop

    def delete_records(self, topic: str, partition: int, before_offset: int) -> DeletedRecords:
        """Delete the records of a partition before an offset (-1: all that are committed), on all its replicas."""
        return self._background.call(self._client.delete_records(topic, partition, before_offset))

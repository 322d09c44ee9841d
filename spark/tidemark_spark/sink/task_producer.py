# SPDX-License-Identifier: Apache-2.0
"""The producer of one attempt of a task, whose rows go to no topic that was created again during the write."""

from __future__ import annotations

import time
from typing import Final

from tidemark.client import Producer
from tidemark.client.aio import Producer as AsyncProducer
from tidemark.client.producing.deleted_topics import recreated

_STALE_S: Final = 2.0
"""Time for which the metadata of a task may be older than the metadata of the driver."""
_LOOK_S: Final = 0.1


class TaskProducer(Producer):
    """A producer that writes to one topic of each name."""

    def pin(self, topic: str, topic_id: str) -> str:
        """Send all rows of that name to one topic, and return its id.

        Args:
            topic: name of the topic.
            topic_id: the id that the driver found; "": the present id.

        Raises:
            TidemarkError: UNKNOWN_TOPIC; UNKNOWN_TOPIC_ID: the name has another id by now.
        """
        return self._background.call(_pin(self._client, topic, topic_id), self._call_s)


async def _pin(producer: AsyncProducer, topic: str, topic_id: str) -> str:
    cluster, until_s = producer.cluster, time.monotonic() + _STALE_S
    while True:
        await producer.ready(topic)
        view = cluster.topic_now(topic)
        found = "" if view is None else view.topic_id
        if found and found == (topic_id or found):
            producer.sender.pin(topic, found)
            return found
        if time.monotonic() >= until_s:
            raise recreated(topic, is_final=True)
        await cluster.look_again(timeout_s=_STALE_S)
        await cluster.wait_for_update(_LOOK_S)

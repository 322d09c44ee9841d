# SPDX-License-Identifier: Apache-2.0
"""The typed topics that a consumer reads: their schemas, and the columns that the application requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.settings import ConsumerSettings
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.client.typed.topic_schemas import KnownSchemas, TopicSchemas
from tidemark.model import TidemarkError, invalid_request


class TypedTopics:
    """Readers of the typed topics of a consumer; used on one event loop.

    Args:
        cluster: the metadata.
        settings: settings of the consumer.
        fetcher: has the cursors that read.
        check: called with each typed topic; raises an error if the application cannot read such a topic.
    """

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, fetcher: Fetcher, check: Callable[[str], None]
    ) -> None:
        self.schemas = TopicSchemas(cluster, self._on_change)
        cluster.listen(self.schemas.in_background)
        cluster.used_topics.forgotten.append(self._forget)
        self._timeout_s = settings.request_timeout_ms / 1000
        self._versions = settings.schema_versions
        self._fetcher = fetcher
        self._check = check
        self._columns: Sequence[str] | None = None
        self._readers: dict[str, tuple[str, BatchRows]] = {}
        """Topic id and reader by topic."""

    def _forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._readers.pop(topic, None)

    async def open(self, topic: str) -> BatchRows | None:
        """The reader of a topic; None for a topic without a schema."""
        known = await self.schemas.load(topic, timeout_s=self._timeout_s)
        if known is None:
            self._check_has_columns(topic)
            self._check_names_no_version(topic)
            return None
        self._check(topic)
        found = self._readers.get(topic)
        if found is None or found[0] != known.topic_id:
            found = self._readers[topic] = (known.topic_id, self._rows_of(topic, known))
        return found[1]

    def want(self, columns: Sequence[str] | None) -> None:
        """Read these columns from now on; None: whole rows. Raises INVALID_REQUEST; then nothing is changed."""
        if columns == self._columns:
            return
        before, self._columns = self._columns, columns
        try:
            made = self._made()
        except TidemarkError:
            self._columns = before
            raise
        self._readers = {topic: self._readers[topic] for topic in made}
        for topic, rows in made.items():  # a partition that is taken up now has a reader, and no cursor in the fetcher
            self._readers[topic][1].become(rows)
        cursors = self._fetcher.cursors.values()
        self._refetch([one for one in cursors if one.typed is not None and one.partition.topic in made])

    def _made(self) -> dict[str, BatchRows]:
        """Readers of the wanted columns, by topic. A topic that is not read may lack the columns."""
        for cursor in self._fetcher.cursors.values():
            if cursor.typed is None:
                self._check_has_columns(cursor.partition.topic)
        read = {where.topic for where in self._fetcher.cursors}
        made: dict[str, BatchRows] = {}
        for topic, (topic_id, _) in self._readers.items():
            known = self.schemas.known.get(topic)
            if known is None or known.topic_id != topic_id:
                continue
            try:
                made[topic] = self._rows_of(topic, known)
            except TidemarkError:
                if topic in read:
                    raise
        return made

    async def learn_version(self, cursor: Cursor) -> None:
        """Learn the version of the schema that the cursor's next batch has; a failure becomes the cursor's error."""
        generation = cursor.generation
        try:
            await self.schemas.load(cursor.partition.topic, timeout_s=self._timeout_s, version=cursor.wanted_version)
        except TidemarkError as error:
            if cursor.generation == generation:
                cursor.error = error
                cursor.forget_buffer()
        cursor.wanted_version = 0
        self._fetcher.wake()

    def _on_change(self, topic: str) -> None:
        known, found = self.schemas.known.get(topic), self._readers.get(topic)
        if known is None or found is None or found[0] != known.topic_id:
            return
        reader = found[1]
        before = reader.column_ids
        try:
            reader.learn(known.versions)
        except TidemarkError as error:  # the new version lacks a column that the application reads
            for cursor in self._of(reader):
                cursor.error = error
            return
        if reader.column_ids != before:
            self._refetch(self._of(reader))

    def _of(self, reader: BatchRows) -> list[Cursor]:
        return [cursor for cursor in self._fetcher.cursors.values() if cursor.typed is reader]

    def _refetch(self, cursors: Sequence[Cursor]) -> None:
        """Discard batches with other columns, also batches of a fetch in flight."""
        for cursor in cursors:
            cursor.generation += 1
            cursor.forget_buffer()
        self._fetcher.moved(*cursors)

    def _rows_of(self, topic: str, known: KnownSchemas) -> BatchRows:
        return BatchRows(topic, known.versions, self._columns, version=self._versions.get(topic))

    def _check_names_no_version(self, topic: str) -> None:
        if topic in self._versions:
            sentence = f"topic {topic} has no schema, and so no schema versions: remove it from schema_versions"
            raise invalid_request(sentence)

    def _check_has_columns(self, topic: str) -> None:
        if self._columns is not None:
            raise invalid_request(f"topic {topic} has no schema, so its records have no columns: omit columns")

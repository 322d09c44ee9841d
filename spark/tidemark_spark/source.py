# SPDX-License-Identifier: Apache-2.0
"""The data source: its name, its schema, its readers and writers.

Spark requests the name and the schema in four separate processes before the first query, so the modules that read and
write are imported late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType
from tidemark.model import TidemarkError

from tidemark_spark.closed_sockets import end_silently
from tidemark_spark.common_options import has_bootstrap
from tidemark_spark.options import parse_options, parse_schema_options, single_topic
from tidemark_spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from tidemark_spark.sink.writer import TidemarkStreamWriter
    from tidemark_spark.typed.table import TypedTable
    from tidemark_spark.typed.topic import TypedTopic

NAME = "tidemark"

end_silently()


def register(spark: SparkSession) -> None:
    """Register format("tidemark") in a session that did not find `pyspark_tidemark`."""
    try:
        spark.dataSource.register(TidemarkDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # PySpark 4.0: the topic was found before
            raise


class TidemarkDataSource(DataSource):
    """Topics as a table with the columns and options of Spark's Kafka source; see docs/spark.md."""

    _typed: TypedTopic | None
    """The topic, after `_topic` has looked it up; the reader's process gets the topic from the process that found
    the columns.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the source, which is the argument of format()."""
        return NAME

    @plain_errors()
    def schema(self) -> StructType | str:
        """Columns of a typed topic; otherwise, as DDL, the columns of bytes, with the names and types of Spark's
        Kafka source.
        """
        topic = self._topic()
        if topic is None:
            return parse_schema_options(self.options).ddl()
        from tidemark_spark.typed.read_schema import table_schema

        given = self._given()
        return table_schema(topic, given.get("columns"), given.get("metadatacolumns"))

    def _given(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.options.items()}

    def _topic(self) -> TypedTopic | None:
        """The topic of the read, if it has a schema; found once."""
        if not hasattr(self, "_typed"):
            given = self._given()
            name = single_topic(given)
            if name is None or not has_bootstrap(given):
                return None
            from tidemark_spark.typed.topic import typed_topic

            found = typed_topic(given, name)
            self._typed = found and found.named(given.get("schemaversion"))
        return self._typed

    def table(self, schema: StructType) -> TypedTable | None:
        """The columns of a read of a typed topic; None: the read returns bytes."""
        topic = self._topic()
        if topic is None:
            return None
        from tidemark_spark.typed.table import TypedTable

        return TypedTable(topic, schema)

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader; options are checked here, in the driver."""
        from tidemark_spark.compat import pushdown_is_on
        from tidemark_spark.reader import TidemarkFilteringReader, TidemarkReader

        table = self.table(schema)
        options = parse_options(self.options, typed=table is not None)
        # Only on request: PySpark (4.1 to 4.3) reuses the plan of a filtered query for a later query without a filter
        # on the same DataFrame. Rows would then be missing silently.
        kind = TidemarkFilteringReader if options.push_down_filters and pushdown_is_on() else TidemarkReader
        return kind(options, schema, table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of micro-batches; errors in the options are raised at its first call."""
        from tidemark_spark.stream_reader import RefusedStreamReader, open_stream_reader

        try:
            table = self.table(schema)
            options = parse_options(self.options, streaming=True, typed=table is not None)
            return open_stream_reader(options, schema, table)
        except (ValueError, TidemarkError) as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer; see docs/spark-writing.md for its options and columns."""
        from tidemark_spark.sink.writer import open_writer

        return open_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidemarkStreamWriter:  # noqa: N802 - Spark's name
        """A writer of micro-batches, with the same options and columns."""
        from tidemark_spark.sink.writer import open_stream_writer

        return open_stream_writer(self.options, schema, overwrite=overwrite)

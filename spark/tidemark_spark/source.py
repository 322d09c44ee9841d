# SPDX-License-Identifier: Apache-2.0
"""The data source: its name, its schema, and who reads and writes. Everything that computes lives elsewhere.

Spark asks for the name and the schema in four processes of their own before the first query: what reads and writes is
imported only where it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from tidemark_spark.options import parse_options, parse_schema_options

if TYPE_CHECKING:
    from tidemark_spark.writer import TidemarkStreamWriter

NAME = "tidemark"


def register(spark: SparkSession) -> None:
    """Make format("tidemark") known to a session that did not find `pyspark_tidemark` by itself."""
    try:
        spark.dataSource.register(TidemarkDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # PySpark 4.0: it did
            raise


class TidemarkDataSource(DataSource):
    """Topics as a table with the columns and options of Spark's Kafka source; docs/spark.md has them all."""

    @classmethod
    def name(cls) -> str:
        """What format() takes."""
        return NAME

    def schema(self) -> str:
        """Columns, named and typed as those of Spark's Kafka source, as DDL."""
        return parse_schema_options(self.options).ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader; the options are checked here, on the driver."""
        from tidemark_spark.compat import pushdown_is_on
        from tidemark_spark.reader import TidemarkFilteringReader, TidemarkReader

        options = parse_options(self.options)
        # Only if asked for: PySpark (4.1 to 4.3) gives a later query on the same DataFrame, if that has no filter, what
        # it planned for the filtered one, so that rows would be missing silently.
        kind = TidemarkFilteringReader if options.push_down_filters and pushdown_is_on() else TidemarkReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of micro-batches; what is wrong with the options is told when Spark first asks it for anything."""
        from tidemark_spark.stream_reader import RefusedStreamReader, open_stream_reader

        try:
            return open_stream_reader(parse_options(self.options, streaming=True), schema)
        except ValueError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer; see docs/spark-writing.md for its options and columns."""
        from tidemark_spark.writer import open_writer

        return open_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidemarkStreamWriter:  # noqa: N802 - Spark's name
        """A writer of micro-batches, with the same options and columns."""
        from tidemark_spark.writer import open_stream_writer

        return open_stream_writer(self.options, schema, overwrite=overwrite)

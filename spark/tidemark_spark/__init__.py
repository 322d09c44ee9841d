"""The PySpark data source "tidemark": topics as tables, by pip alone, without jars."""

from tidemark_spark.source import TidemarkDataSource, register

__all__ = ["TidemarkDataSource", "register"]

# SPDX-License-Identifier: Apache-2.0
"""PySpark finds this package by its name, so that `format("tidemark")` is registered in every session."""

from tidemark_spark.source import TidemarkDataSource as DefaultSource

__all__ = ["DefaultSource"]

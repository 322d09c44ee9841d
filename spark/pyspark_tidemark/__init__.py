# SPDX-License-Identifier: Apache-2.0
"""Found by PySpark by its name: makes `format("tidemark")` known to every session without a call."""

from tidemark_spark.source import TidemarkDataSource as DefaultSource

__all__ = ["DefaultSource"]

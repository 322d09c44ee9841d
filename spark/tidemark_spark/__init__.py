# SPDX-License-Identifier: Apache-2.0
"""The PySpark data source "tidemark": topics as tables and streams, installed by pip, without jars."""

from tidemark_spark.progress import PartitionProgress, TidemarkListener
from tidemark_spark.source import TidemarkDataSource, register

__all__ = ["PartitionProgress", "TidemarkDataSource", "TidemarkListener", "register"]

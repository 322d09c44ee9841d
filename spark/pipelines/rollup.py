# SPDX-License-Identifier: Apache-2.0
"""The command line of the rollup job; see docs/spark-pipelines.md for its options."""

import sys

from tidemark_spark.jobs.rollup import main

if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`spark-submit replay.py --help`: see docs/spark-pipelines.md."""

import sys

from tidemark_spark.jobs.replay import main

if __name__ == "__main__":
    sys.exit(main())

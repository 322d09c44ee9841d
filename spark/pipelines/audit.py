# SPDX-License-Identifier: Apache-2.0
"""`spark-submit audit.py --help`: see docs/spark-pipelines.md."""

import sys

from tidemark_spark.jobs.audit import main

if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Parts of streaming queries that run beside the micro-batches."""

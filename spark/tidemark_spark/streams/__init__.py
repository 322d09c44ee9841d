# SPDX-License-Identifier: Apache-2.0
"""Parts of streaming queries that run at the same time as the micro-batches."""

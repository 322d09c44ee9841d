# SPDX-License-Identifier: Apache-2.0
"""From send() to the leader: partitioner, batches, accumulator, produce streams."""

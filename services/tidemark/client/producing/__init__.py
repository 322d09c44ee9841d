# SPDX-License-Identifier: Apache-2.0
"""The path of a record from `send` to the leader: partitioner, batches, accumulator, produce streams."""

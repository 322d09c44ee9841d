# SPDX-License-Identifier: Apache-2.0
"""The path of records from a replica to `poll`: cursors, fetch streams, range reads, health."""

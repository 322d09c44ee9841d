# SPDX-License-Identifier: Apache-2.0
"""From the replica to poll(): cursors, fetch streams, ranges, health."""

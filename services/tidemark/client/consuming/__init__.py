"""From the replica to poll(): cursors, fetch streams, ranges, health."""

"""From send() to the leader: partitioner, batches, accumulator, produce streams."""

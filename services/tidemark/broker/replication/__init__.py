"""Replication between brokers: control RPCs, replica streams, follower reads, ISR changes."""

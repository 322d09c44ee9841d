"""The replication protocol and the controller as state machines. Pure."""

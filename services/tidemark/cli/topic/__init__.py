"""The command `tidemark topic`."""

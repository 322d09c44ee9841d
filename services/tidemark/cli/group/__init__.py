"""The command `tidemark group`."""

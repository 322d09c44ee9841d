"""The command `tidemark bench`."""

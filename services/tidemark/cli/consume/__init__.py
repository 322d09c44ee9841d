"""The command `tidemark consume`."""

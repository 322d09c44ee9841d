"""The command `tidemark produce`."""

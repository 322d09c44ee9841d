"""The command `tidemark apply`: a cluster as a file describes it."""

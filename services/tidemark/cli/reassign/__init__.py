"""The commands `tidemark reassign` and `tidemark log-dirs` move."""

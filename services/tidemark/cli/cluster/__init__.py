"""The commands `tidemark cluster` and `tidemark log-dirs`."""

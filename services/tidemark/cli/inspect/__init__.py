"""The commands `tidemark log` and `tidemark replicas`."""

"""The jobs of spark/pipelines: each a module with `parser`, `run` and `main`."""

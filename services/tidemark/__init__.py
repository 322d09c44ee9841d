"""Tidemark: a replicated commit log."""

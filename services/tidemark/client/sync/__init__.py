"""Blocking clients over the async ones."""

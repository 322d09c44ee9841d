"""Reads of single replicas, compared and verified."""

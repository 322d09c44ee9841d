"""Reassignments as values: a request, its checks, its status and its progress. Pure."""

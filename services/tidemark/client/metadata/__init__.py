"""Cluster metadata of a client, and the backoff between retries."""

"""Channels, servers, errors and translation between proto and core."""

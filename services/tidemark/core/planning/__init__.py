"""Replica placement and plans that balance brokers. Pure."""

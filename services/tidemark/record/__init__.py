"""The record batch: envelope and Arrow payload. Pure."""

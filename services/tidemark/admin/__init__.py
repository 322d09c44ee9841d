"""The admin service."""

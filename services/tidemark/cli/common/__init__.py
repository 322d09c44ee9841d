"""Shared by all commands: options, output, progress, units."""

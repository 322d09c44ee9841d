"""A partition's log on disk."""

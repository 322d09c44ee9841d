"""The async AdminClient, by subject."""

"""A member of a consumer group: coordinator, heartbeats, offset commits."""

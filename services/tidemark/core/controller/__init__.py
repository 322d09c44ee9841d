"""The controller as a state machine: elections, topics, reassignments, controlled shutdown. Pure."""

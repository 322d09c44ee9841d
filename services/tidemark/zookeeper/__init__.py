"""Everything that knows ZooKeeper."""

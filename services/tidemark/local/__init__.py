"""A whole cluster in one process tree, for laptops and tests."""

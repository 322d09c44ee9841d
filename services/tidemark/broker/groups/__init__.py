"""Group coordinators and __consumer_offsets."""

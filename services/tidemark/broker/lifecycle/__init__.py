"""Start and stop of a broker: address, registration, readiness, controlled shutdown."""

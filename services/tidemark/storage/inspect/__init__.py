"""Logs and log directories as the CLI inspects and verifies them; the broker never imports these."""

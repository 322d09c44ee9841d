"""What every process needs: configuration, signals, health, metrics, logging."""

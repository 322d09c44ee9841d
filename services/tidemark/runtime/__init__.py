# SPDX-License-Identifier: Apache-2.0
"""What every process needs: configuration, signals, health, metrics, logging."""

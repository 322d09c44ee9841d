# SPDX-License-Identifier: Apache-2.0
"""Shared by every process: configuration, signals, health, metrics, logging."""

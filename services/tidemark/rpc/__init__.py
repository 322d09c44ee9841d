# SPDX-License-Identifier: Apache-2.0
"""Channels, servers and errors."""

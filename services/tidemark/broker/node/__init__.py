# SPDX-License-Identifier: Apache-2.0
"""The broker as a node: its core's driver, session lease, metadata, topic settings and dynamic configuration."""

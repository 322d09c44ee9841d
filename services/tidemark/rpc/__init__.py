# SPDX-License-Identifier: Apache-2.0
"""Channels, servers, errors and translation between proto and core."""

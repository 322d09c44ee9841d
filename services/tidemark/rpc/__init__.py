# SPDX-License-Identifier: Apache-2.0
"""Channels, servers, errors, and the translation between proto messages and the core's objects."""

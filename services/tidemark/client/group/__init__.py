# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group: coordinator, heartbeats, offset commits."""

# SPDX-License-Identifier: Apache-2.0
"""Cluster metadata of a client, and the backoff between retries."""

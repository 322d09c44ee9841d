# SPDX-License-Identifier: Apache-2.0
"""The session of a service with ZooKeeper: its servers, its requests, its lease and its metrics."""

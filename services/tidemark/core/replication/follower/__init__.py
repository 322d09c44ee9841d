# SPDX-License-Identifier: Apache-2.0
"""The follower's side of replication: reconcile, fetch, append and report."""

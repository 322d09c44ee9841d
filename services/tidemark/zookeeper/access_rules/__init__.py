# SPDX-License-Identifier: Apache-2.0
"""The access rules (ACLs) in ZooKeeper, and the feed that keeps an authorizer up to date."""

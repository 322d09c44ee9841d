# SPDX-License-Identifier: Apache-2.0
"""Everything that knows ZooKeeper."""

# SPDX-License-Identifier: Apache-2.0
"""Consumer groups, pure: who reads what, how far, and how partitions go from hand to hand (docs/groups.md)."""

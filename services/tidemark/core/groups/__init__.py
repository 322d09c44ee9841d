# SPDX-License-Identifier: Apache-2.0
"""Consumer groups: membership, assignment, reconciliation and committed offsets (docs/groups.md)."""

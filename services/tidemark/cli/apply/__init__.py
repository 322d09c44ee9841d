# SPDX-License-Identifier: Apache-2.0
"""The command `tidemark apply`: a cluster as a file describes it."""

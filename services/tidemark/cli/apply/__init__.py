# SPDX-License-Identifier: Apache-2.0
"""The command `tidemark apply`: make a cluster match a file."""

# SPDX-License-Identifier: Apache-2.0
"""The commands `tidemark reassign` and `tidemark log-dirs` move."""

# SPDX-License-Identifier: Apache-2.0
"""Tidemark: a replicated commit log."""

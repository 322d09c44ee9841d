# SPDX-License-Identifier: Apache-2.0
"""A partition's log on disk."""

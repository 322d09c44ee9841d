# SPDX-License-Identifier: Apache-2.0
"""The commands `tidemark log` and `tidemark replicas`."""

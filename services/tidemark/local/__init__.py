# SPDX-License-Identifier: Apache-2.0
"""A local cluster in one process tree, for development and tests."""

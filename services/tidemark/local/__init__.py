# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in one process tree, for laptops and tests."""

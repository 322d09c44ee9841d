# SPDX-License-Identifier: Apache-2.0
"""The pages: one module each, listed in `table`."""

# SPDX-License-Identifier: Apache-2.0
"""The translation between proto messages and the core's objects; bytes written and read by hand where that pays."""

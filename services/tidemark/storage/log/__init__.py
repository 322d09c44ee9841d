# SPDX-License-Identifier: Apache-2.0
"""One replica's log: appending, reading, truncating, flushing and cleaning it."""

# SPDX-License-Identifier: Apache-2.0
"""Options, output, progress and units that several commands share."""

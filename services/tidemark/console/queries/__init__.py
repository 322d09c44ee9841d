# SPDX-License-Identifier: Apache-2.0
"""Questions to the cluster that all open pages share."""

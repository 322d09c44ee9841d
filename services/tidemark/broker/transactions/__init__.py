# SPDX-License-Identifier: Apache-2.0
"""The transaction coordinators of this broker, the RPCs of transactions, and the markers."""

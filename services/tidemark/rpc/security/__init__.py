# SPDX-License-Identifier: Apache-2.0
"""TLS of servers and channels, and the identity of a caller."""

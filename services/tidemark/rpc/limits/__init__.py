# SPDX-License-Identifier: Apache-2.0
"""Limits that hold without configuration: of connections, streams, bytes in flight, and items of a request."""

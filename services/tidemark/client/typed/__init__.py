# SPDX-License-Identifier: Apache-2.0
"""Typed topics at the clients: rows checked and built for producers, read and projected for readers."""

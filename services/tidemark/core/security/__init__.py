# SPDX-License-Identifier: Apache-2.0
"""Identities, and the rights of services. Pure."""

# SPDX-License-Identifier: Apache-2.0
"""The broker service."""

# SPDX-License-Identifier: Apache-2.0
"""Blocking clients over the async ones."""

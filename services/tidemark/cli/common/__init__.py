# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: options, output, progress, units."""

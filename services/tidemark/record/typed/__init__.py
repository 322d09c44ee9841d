# SPDX-License-Identifier: Apache-2.0
"""The batch of a typed topic: the columns of a version of its schema, each with its own CRC (docs/formats.md)."""

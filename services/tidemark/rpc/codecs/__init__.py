# SPDX-License-Identifier: Apache-2.0
"""The translation between proto messages and the core's objects.

Where protobuf is too slow, the code reads and writes the bytes of a message itself.
"""

# SPDX-License-Identifier: Apache-2.0
"""The schema of a typed topic: its model, texts, evolution, Arrow types and projection. Pure."""

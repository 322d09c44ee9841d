# SPDX-License-Identifier: Apache-2.0
"""The record batch: envelope and Arrow payload. Pure."""

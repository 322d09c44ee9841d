# SPDX-License-Identifier: Apache-2.0
"""The async AdminClient, its connection and its results."""

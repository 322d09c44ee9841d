# SPDX-License-Identifier: Apache-2.0
"""Records as text, JSON, CSV and Parquet: of the command `consume` and of the console."""

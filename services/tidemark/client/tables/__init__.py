# SPDX-License-Identifier: Apache-2.0
"""Typed topics as tables: for Arrow, DuckDB, pandas and Polars."""

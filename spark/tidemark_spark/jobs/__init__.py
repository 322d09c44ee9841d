# SPDX-License-Identifier: Apache-2.0
"""The jobs of spark/pipelines: each a module with `parser`, `run` and `main`."""

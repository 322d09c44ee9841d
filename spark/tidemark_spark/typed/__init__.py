# SPDX-License-Identifier: Apache-2.0
"""Topics with a schema: their columns as Spark's, without a parse."""

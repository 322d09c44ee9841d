# SPDX-License-Identifier: Apache-2.0
"""How rows of Spark become records of a topic."""

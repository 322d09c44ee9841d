# SPDX-License-Identifier: Apache-2.0
"""A Spark stream through kills of brokers and of its driver, on a busy machine."""

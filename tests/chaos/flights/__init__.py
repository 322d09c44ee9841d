# SPDX-License-Identifier: Apache-2.0
"""The flights pipeline while brokers and drivers are killed."""

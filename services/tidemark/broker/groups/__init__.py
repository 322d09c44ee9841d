# SPDX-License-Identifier: Apache-2.0
"""Group coordinators and __consumer_offsets."""

# SPDX-License-Identifier: Apache-2.0
"""Start and stop of a broker: address, registration, readiness, controlled shutdown."""

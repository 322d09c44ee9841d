# SPDX-License-Identifier: Apache-2.0
"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

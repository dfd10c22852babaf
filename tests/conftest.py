"""Shared by every test: how much Hypothesis explores."""

import os

from hypothesis import HealthCheck, settings

SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=SLOW_DATA
)
settings.register_profile(
    "ci", deadline=None, max_examples=60, derandomize=True, suppress_health_check=SLOW_DATA
)
settings.register_profile(
    "thorough", deadline=None, max_examples=2000, suppress_health_check=SLOW_DATA
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)

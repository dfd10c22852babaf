"""Metrics of look-ups in shared caches; none without `--shared-caches`."""

from collections.abc import Sequence

from select_service.core.shared_caches.cache_status import SharedCacheStatus
from select_service.metrics.series import FamilyRow

SHARED_CACHES: Sequence[FamilyRow[SharedCacheStatus]] = (
    FamilyRow(
        "shared_cache_lookups_total",
        "Look-ups of prompts in the shared cache of a model, by outcome.",
        lambda s: s.outcomes,
        ("outcome",),
    ),
    FamilyRow(
        "shared_cache_found_tokens_total",
        "Leading prompt tokens that look-ups found in the shared cache.",
        lambda s: s.found_tokens,
    ),
    FamilyRow(
        "shared_cache_wait_seconds_total",
        "Seconds that requests waited for look-ups in the shared cache.",
        lambda s: s.waited_s,
    ),
    FamilyRow(
        "shared_cache_in_flight",
        "Look-ups in the shared cache that run now.",
        lambda s: s.in_flight,
    ),
    FamilyRow(
        "shared_cache_open",
        "1 while the breaker of the shared cache is open, else 0.",
        lambda s: s.is_open,
    ),
)

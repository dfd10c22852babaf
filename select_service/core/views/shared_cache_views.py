"""Views of shared caches for operators."""

from select_service.core.shared_caches.cache_status import SharedCacheStatus
from select_service.schemas.shared_caches import SharedCacheView


def make_shared_cache_view(status: SharedCacheStatus) -> SharedCacheView:
    """Return the view of the shared cache of a model."""
    return SharedCacheView(
        model_name=status.model_name,
        kind=status.kind,
        url=status.url,
        answering=status.is_answering,
        changed_s=_rounded(status.changed_s),
        breaker_open=status.is_open,
        last_error=status.last_error,
        error_s=_rounded(status.error_s),
        lookups=dict(status.outcomes),
        hit_rate=round(status.hits / status.answered, 4) if status.answered else None,
        found_tokens=status.found_tokens,
        wait_ms=round(1e3 * status.waited_s / status.waited, 3) if status.waited else None,
        request_ms=None if status.request_s is None else round(1e3 * status.request_s, 3),
        in_flight=status.in_flight,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

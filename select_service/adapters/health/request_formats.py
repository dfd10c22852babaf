"""Request format accepted by each worker: with all fields, or the plain format.

If a worker rejects its first canary, the canary may be repeated in the plain format.  The accepted
format is remembered until the worker is registered again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from select_service.adapters.health.canary_requests import Form
from select_service.adapters.health.canary_targets import CanaryTarget
from select_service.core.health.checks.canary_prompts import CanaryApi
from select_service.schemas.workers import WorkerRegistration

FIRST_FORMAT: Mapping[CanaryApi, Form] = {"openai": "full", "sglang": "generate"}
FALLBACK_FORMAT: Mapping[CanaryApi, Form] = {"openai": "plain", "sglang": "generate_plain"}
"""Fallback format by API, used when the first format is rejected."""
WORKERS_MAX = 8192
"""Size of the LRU table; other workers start with the full format again."""


class _AcceptedFormat(NamedTuple):
    registration: WorkerRegistration
    form: Form


class RequestFormats:
    """Accepted request format by worker, bounded by WORKERS_MAX."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _AcceptedFormat] = OrderedDict()

    def accepted_format(self, target: CanaryTarget) -> Form | None:
        """Return the accepted format of a worker, or None while unknown."""
        known = self._known.get(target.registration.worker_id)
        # Identity, not equality: a re-registered worker may be another engine version.
        is_same = known is not None and known.registration is target.registration
        return known.form if known is not None and is_same else None

    def record_format(self, target: CanaryTarget, form: Form) -> None:
        """Record that the worker has answered a format."""
        worker_id = target.registration.worker_id
        self._known[worker_id] = _AcceptedFormat(target.registration, form)
        self._known.move_to_end(worker_id)
        if len(self._known) > WORKERS_MAX:
            self._known.popitem(last=False)

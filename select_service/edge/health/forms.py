"""Which form of request each worker takes: all fields, or the plain ones.

The first canary of a worker that refuses it may be asked again in the plain form; what it then
takes is remembered until the worker is registered again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from select_service.bodies.workers import WorkerRegistration
from select_service.core.health.canary_prompts import Api
from select_service.edge.health.requests import Form
from select_service.edge.health.targets import Target

FIRST: Mapping[Api, Form] = {"openai": "full", "sglang": "generate"}
PLAIN: Mapping[Api, Form] = {"openai": "plain", "sglang": "generate_plain"}
"""Asked instead of the first form, where that is refused."""
WORKERS_MAX = 8192
"""Those that were asked last; the others begin with the full form again."""


class _Known(NamedTuple):
    registration: WorkerRegistration
    form: Form


class Forms:
    """Bounded by WORKERS_MAX."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def of(self, target: Target) -> Form | None:
        """None: not known yet."""
        known = self._known.get(target.registration.worker_id)
        is_same = known is not None and known.registration is target.registration
        return known.form if known is not None and is_same else None

    def learnt(self, target: Target, form: Form) -> None:
        """The worker has answered it."""
        worker_id = target.registration.worker_id
        self._known[worker_id] = _Known(target.registration, form)
        self._known.move_to_end(worker_id)
        if len(self._known) > WORKERS_MAX:
            self._known.popitem(last=False)

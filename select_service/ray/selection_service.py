"""Replacement of the class `SelectionService` of `dynamo.llm` that uses selectors over HTTP.

Ray's `KVAwareRouter` calls a `KVTokenTracker`, which calls an instance of this class in its own
process. `install` registers this class for the import in Ray, so Ray's router runs unchanged, and
its ingress replicas share the selectors instead of an index each.

    HOOK = "select_service.ray.selection_service.install"
    ray.init(runtime_env={"worker_process_setup_hook": HOOK})

Source of the calls: `ray.llm._internal.serve.routing_policies.kv_aware.kv_token_tracker`, Ray 2.60.
"""

import asyncio
import importlib.util
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from select_service.client import AsyncSelector, Refused, SelectorError
from select_service.ray.catalog_reconciler import Follower, Seen
from select_service.ray.credentials import Credentials
from select_service.ray.deployment import NAME, make_lookup
from select_service.ray.discovered_selectors import DiscoveredSelectors
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest
from select_service.schemas.workers import WorkerRegistration

VARIABLE = "SELECT_SERVICE_URLS"
"""Variable with comma-separated URLs of selectors; unset means the selectors that `deploy` started.
"""
KEY_VARIABLE, CA_VARIABLE = "SELECT_SERVICE_CLIENT_KEY_FILE", "SELECT_SERVICE_CLIENT_CA_FILE"
"""Variables with the files of the API key and of the trusted CAs; see `deploy`."""
FOREIGN_RESERVATIONS_MAX = 65_536
"""Limit of remembered reservations of other ingress replicas."""
IN_USE, UNKNOWN = 409, 404

MODULES = ("dynamo", "dynamo.llm")

B = TypeVar("B", SelectAndReserveRequest, ReservationRequest)


def install() -> None:
    """Make `from dynamo.llm import SelectionService` return the class of this module.

    Raises ImportError if the real package is installed, because the replacement would hide it.
    """
    present = sys.modules.get("dynamo.llm")
    if present is not None and getattr(present, "SelectionService", None) is SelectionService:
        return
    if _is_installed():
        raise ImportError(
            "ai-dynamo is installed and would be hidden: remove it, or do not call install()"
        )
    package, module = map(ModuleType, MODULES)
    # An empty path makes the module a package without files.
    package.__path__ = []
    module.SelectionService = SelectionService  # type: ignore[attr-defined]
    package.llm = module  # type: ignore[attr-defined]
    sys.modules.update(zip(MODULES, (package, module), strict=True))


class SelectionService:
    """Class with the interface of Dynamo's. Belongs to one event loop.

    Errors that raise other exceptions in Dynamo raise RuntimeError here.
    """

    def __init__(self, indexer_threads: int = 4) -> None:
        """indexer_threads: ignored; the index is in the selectors

        Raises ValueError for an unreadable file of the environment.
        """
        given = [url for url in os.environ.get(VARIABLE, "").split(",") if url]
        urls = make_lookup(given or NAME)
        self._workers: dict[int, WorkerRegistration] = {}
        shown = Credentials(os.environ.get(KEY_VARIABLE), os.environ.get(CA_VARIABLE))
        self._follower = Follower(
            lambda: Seen(list(self._workers.values()), True), urls, **shown._asdict()
        )
        self._selectors = DiscoveredSelectors(urls, **shown.client_options())
        self._foreign_reservations: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    # Workers

    async def upsert_worker(self, worker: Mapping[str, Any]) -> None:
        """Register a worker at all selectors, now and whenever a selector lacks the worker."""
        registration = msgspec.convert(dict(worker), WorkerRegistration, strict=False)
        self._workers[registration.worker_id] = registration
        await asyncio.to_thread(self._reconcile)

    async def delete_worker(self, worker_id: int) -> None:
        """Remove a worker and its reservations from all selectors."""
        self._workers.pop(worker_id, None)
        await asyncio.to_thread(self._reconcile)

    def _reconcile(self) -> None:
        with suppress(LookupError):  # the follower finds selectors that start later
            self._follower.turn()

    # Reservations

    async def select_and_reserve(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Reserve a rank; `selection_id` is the name of the reservation.

        A name in use belongs to the same request, which Ray routes again: the former reservation is
        freed.
        """
        body = reservation_body({**request, "include_hashes": True}, SelectAndReserveRequest)
        client = await self._current_client()
        with raising_runtime_errors():
            try:
                selection = await client.select_and_reserve(body)
            except Refused as refused:
                if refused.status != IN_USE:
                    raise
                await client.free(request["selection_id"])
                selection = await client.select_and_reserve(body)
        return dict(msgspec.to_builtins(selection))

    async def create_reservation(self, request: Mapping[str, Any]) -> None:
        """Reserve the rank that another ingress replica has chosen, unless the reservation exists.

        The reservation exists if both ingress replicas use selectors; then the other replica
        reports the output.
        """
        body = reservation_body(request, ReservationRequest)
        client = await self._current_client()
        with raising_runtime_errors():
            try:
                await client.reserve(body)
            except Refused as refused:
                if refused.status != IN_USE:
                    raise
                # The other replica reports the output, so this one must not count the blocks twice.
                self._foreign_reservations[body.booking_id] = None
                if len(self._foreign_reservations) > FOREIGN_RESERVATIONS_MAX:
                    self._foreign_reservations.popitem(last=False)

    async def prefill_complete(self, name: str) -> None:
        """Report that the prompt is computed. Several ingress replicas may send the same report."""
        client = await self._current_client()
        with raising_runtime_errors(), ignoring_not_found():
            await client.prefill_complete(name)

    def add_output_block(self, name: str, decay_fraction: float | None = None) -> None:
        """Report one output block in the background, from the replica that made the reservation."""
        if name not in self._foreign_reservations:
            task = asyncio.create_task(self._send_output_block(name, decay_fraction))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def free_reservation(self, name: str) -> None:
        """Free a reservation. Several ingress replicas may free the same reservation."""
        self._foreign_reservations.pop(name, None)
        client = await self._current_client()
        with raising_runtime_errors(), ignoring_not_found():
            await client.free(name)

    async def _send_output_block(self, name: str, decay_fraction: float | None) -> None:
        with suppress(SelectorError, RuntimeError):  # the end of the request corrects a lost block
            await (await self._current_client()).output_block(name, decay_fraction)

    async def _current_client(self) -> AsyncSelector:
        with raising_runtime_errors():
            return await self._selectors.current_client()


def reservation_body(request: Mapping[str, Any], kind: type[B]) -> B:
    """Return the body of a request of Ray, with `selection_id` as the reservation id."""
    fields = {name: value for name, value in request.items() if value is not None}
    fields["reservation_id"] = fields.pop("selection_id")
    return msgspec.convert(fields, kind, strict=False)


@contextmanager
def raising_runtime_errors() -> Iterator[None]:
    """Raise RuntimeError for all failures, as Dynamo's class does."""
    try:
        yield
    except (SelectorError, LookupError) as error:
        raise RuntimeError(str(error)) from error


@contextmanager
def ignoring_not_found() -> Iterator[None]:
    """Ignore a 404: the reservation was freed elsewhere, or its worker is gone."""
    try:
        yield
    except Refused as refused:
        if refused.status != UNKNOWN:
            raise


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("dynamo.llm") is not None
    except ModuleNotFoundError:
        return False

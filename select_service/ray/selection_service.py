"""A stand-in for the class `SelectionService` of `dynamo.llm`, over HTTP to our selectors.

Ray's `KVAwareRouter` asks a `KVTokenTracker`, and that one an instance of this class in its own
process.  `install` makes the import that it does find this class, so that Ray's router runs
unchanged, and its ingress replicas share what they know instead of each keeping an index.

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

from select_service.bodies.reservations import ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.client import AsyncSelector, Refused, SelectorError
from select_service.ray.credentials import Credentials
from select_service.ray.fleet import NAME, found_by
from select_service.ray.following import Follower, Seen
from select_service.ray.found_selectors import FoundSelectors

VARIABLE = "SELECT_SERVICE_URLS"
"""Comma-separated URLs of selectors; otherwise those that `deploy` started are found by name."""
KEY_VARIABLE, CA_VARIABLE = "SELECT_SERVICE_CLIENT_KEY_FILE", "SELECT_SERVICE_CLIENT_CA_FILE"
"""Files of the key that is shown to selectors, and of whom to believe; see `deploy`."""
OTHERS_MAX = 65_536
"""Reservations of other ingress replicas that are remembered."""
IN_USE, UNKNOWN = 409, 404

MODULES = ("dynamo", "dynamo.llm")

B = TypeVar("B", SelectAndReserveRequest, ReservationRequest)


def install() -> None:
    """Make `from dynamo.llm import SelectionService` find the class of this module.

    Raises ImportError where the real package is installed, which it would hide.
    """
    present = sys.modules.get("dynamo.llm")
    if present is not None and getattr(present, "SelectionService", None) is SelectionService:
        return
    if _is_installed():
        raise ImportError("ai-dynamo is installed here, and would be hidden by the stand-in")
    package, module = map(ModuleType, MODULES)
    package.__path__ = []
    module.SelectionService = SelectionService  # type: ignore[attr-defined]
    package.llm = module  # type: ignore[attr-defined]
    sys.modules.update(zip(MODULES, (package, module), strict=True))


class SelectionService:
    """Belongs to one event loop; every method is called on it.

    What the class of the reference refuses with an exception raises RuntimeError here.
    """

    def __init__(self, indexer_threads: int = 4) -> None:
        """indexer_threads: of an index that is in this process; ours are in the selectors.

        Raises ValueError for a file of the environment that cannot be read.
        """
        given = [url for url in os.environ.get(VARIABLE, "").split(",") if url]
        urls = found_by(given or NAME)
        self._workers: dict[int, WorkerRegistration] = {}
        shown = Credentials(os.environ.get(KEY_VARIABLE), os.environ.get(CA_VARIABLE))
        self._follower = Follower(
            lambda: Seen(list(self._workers.values()), True), urls, **shown._asdict()
        )
        self._found = FoundSelectors(urls, **shown.options())
        self._others: OrderedDict[str, None] = OrderedDict()
        self._under_way: set[asyncio.Task[None]] = set()

    # --- workers

    async def upsert_worker(self, worker: Mapping[str, Any]) -> None:
        """Register it at all selectors, now and whenever one lacks it."""
        registration = msgspec.convert(dict(worker), WorkerRegistration, strict=False)
        self._workers[registration.worker_id] = registration
        await asyncio.to_thread(self._look)

    async def delete_worker(self, worker_id: int) -> None:
        """Remove it everywhere, with its reservations."""
        self._workers.pop(worker_id, None)
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        with suppress(LookupError):  # selectors that start later are found by the follower
            self._follower.turn()

    # --- reservations

    async def select_and_reserve(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Choose and book in one step; the reservation has the name `selection_id`.

        A name that is in use is that of the same request, which Ray routes again: its former
        booking is given back.
        """
        body = body_of({**request, "include_hashes": True}, SelectAndReserveRequest)
        client = await self._client()
        with as_ray_expects():
            try:
                selection = await client.select_and_reserve(body)
            except Refused as refused:
                if refused.status != IN_USE:
                    raise
                await client.free(request["selection_id"])
                selection = await client.select_and_reserve(body)
        return dict(msgspec.to_builtins(selection))

    async def create_reservation(self, request: Mapping[str, Any]) -> None:
        """Book what another ingress replica has chosen, if the selectors do not have it yet.

        They do when both ingress replicas use them; then the other one tells its output.
        """
        body = body_of(request, ReservationRequest)
        client = await self._client()
        with as_ray_expects():
            try:
                await client.reserve(body)
            except Refused as refused:
                if refused.status != IN_USE:
                    raise
                self._others[body.reservation_id] = None
                if len(self._others) > OTHERS_MAX:
                    self._others.popitem(last=False)

    async def prefill_complete(self, name: str) -> None:
        """The prompt is computed.  Several ingress replicas may say so."""
        client = await self._client()
        with as_ray_expects(), unless_gone():
            await client.prefill_complete(name)

    def add_output_block(self, name: str, decay_fraction: float | None = None) -> None:
        """One more block of output; told in the background, by the replica that booked."""
        if name not in self._others:
            task = asyncio.create_task(self._tell_output_block(name, decay_fraction))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def free_reservation(self, name: str) -> None:
        """The end.  Several ingress replicas may say so."""
        self._others.pop(name, None)
        client = await self._client()
        with as_ray_expects(), unless_gone():
            await client.free(name)

    async def _tell_output_block(self, name: str, decay_fraction: float | None) -> None:
        with suppress(SelectorError, RuntimeError):  # a lost block is made good by the end
            await (await self._client()).output_block(name, decay_fraction)

    async def _client(self) -> AsyncSelector:
        with as_ray_expects():
            return await self._found.client()


def body_of(request: Mapping[str, Any], kind: type[B]) -> B:
    """A request of Ray, whose reservation is called `selection_id`."""
    fields = {name: value for name, value in request.items() if value is not None}
    fields["reservation_id"] = fields.pop("selection_id")
    return msgspec.convert(fields, kind, strict=False)


@contextmanager
def as_ray_expects() -> Iterator[None]:
    """What goes wrong is a RuntimeError, as it is with the class of the reference."""
    try:
        yield
    except (SelectorError, LookupError) as error:
        raise RuntimeError(str(error)) from error


@contextmanager
def unless_gone() -> Iterator[None]:
    """Somebody else has freed it, or its worker is gone."""
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

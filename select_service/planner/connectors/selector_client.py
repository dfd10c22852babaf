"""Client of selectors for connectors: load of workers, and drains.

Selectors can differ about health, so a worker drains at all selectors, and is drained when no
selector has requests left.  A request to an unreachable selector is repeated at the next step.
"""

import asyncio
import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.planner.core.tick_input import Role, worker_role
from select_service.planner.planner_http import PlannerHttpClient

log = logging.getLogger("select_service.planner.connectors")

TIMEOUT_S = 5.0
"""Timeout of a request, seconds."""
LOADS_TIMEOUT_S = 10.0
"""Timeout of the loads over all selectors in turn, seconds."""
_CONFLICT, _NOT_FOUND = 409, 404
_DRAINING = "draining"
_LOST = frozenset({"unhealthy", "dead"})
_DRAIN_BODY = b'{"migrate": false, "by": "planner"}'
"""Body of a drain: requests end on the worker, as not every caller follows a migration."""
_UNDRAIN_BODY = b'{"by": "planner"}'
"""Body of an undrain: drains by operators continue."""


class DrainAnswer(StrEnum):
    """Answer of a selector to a drain."""

    ASKED = "asked"
    UNKNOWN = "unknown"
    """No such worker: nothing to wait for."""
    HEALTH_OFF = "health_off"
    """Selector without health checks, which cannot drain."""
    FAILED = "failed"


class WorkerLoad(NamedTuple):
    """Load of a worker, all ranks together.

    host:   host of the endpoint, if known
    drains: whether the worker already leaves, or was taken out by another actor
    is_lost: whether health has taken the worker out
    """

    worker_id: int
    role: Role
    host: str
    active_blocks: int
    cached_blocks: int = 0
    drains: bool = False
    is_lost: bool = False


class DrainRemainder(NamedTuple):
    """Remainder on a draining worker.

    serves:   whether the worker gets new requests, as after a restart of a selector, which forgets
              drains
    known_to: number of selectors that have the worker
    """

    reservations: int
    serves: bool
    known_to: int = 1


class _RankWeight(Struct):
    weight: float = 1.0


class _Health(Struct):
    state: str
    ranks: dict[str, _RankWeight] = {}

    @property
    def is_lost(self) -> bool:
        """Whether no rank serves any more."""
        return self.state in _LOST and not any(rank.weight for rank in self.ranks.values())


class _Drain(Struct):
    reservations: int


class _Worker(Struct):
    worker_id: int
    lifecycle: str = "schedulable"
    endpoint: str | None = None
    role: str | None = None
    health: _Health | None = None
    drain: _Drain | None = None


class _Load(Struct):
    worker_id: int
    potential_decode_blocks: int


class _Partition(Struct):
    loads: list[_Load]


class _RankHealth(Struct):
    worker_id: int
    reservations: int
    weight: float


class _PartitionHealth(Struct):
    ranks: list[_RankHealth]


class _Fleet(Struct):
    partitions: list[_PartitionHealth]


class SelectorRefusal(Struct):
    """Error answer of a selector; empty for an answer of another server."""

    error: str = ""
    code: str = ""


_Answer = TypeVar("_Answer")


class SelectorClients:
    """Replicas of the selector for a model and tenant.

    urls:     addresses of all replicas
    key_file: file with the key for selectors
    tls:      settings of https; None means the system's CAs
    """

    def __init__(
        self,
        urls: Sequence[str],
        model_name: str,
        tenant_id: str,
        key_file: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._key_file = key_file
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._scope = {"model_name": model_name, "tenant_id": tenant_id}
        self._http = PlannerHttpClient(tls)
        self._has_logged_health_off = False
        self._logged_failures: set[str] = set()

    async def read_loads(self) -> list[WorkerLoad] | None:
        """Return the workers of the first selector that answers; None if none does in time."""
        try:
            async with asyncio.timeout(LOADS_TIMEOUT_S):
                # The first answer suffices: every selector knows the same workers and loads.
                for url in self._urls:
                    workers = await self._read_answer(f"{url}/workers", list[_Worker])
                    parts = await self._read_answer(f"{url}/loads", list[_Partition])
                    if workers is not None and parts is not None:
                        return _join_loads(workers, [load for part in parts for load in part.loads])
        except TimeoutError:
            pass
        return None

    async def drain_worker(self, worker_id: int) -> DrainAnswer:
        """Drain a worker at all selectors.

        The weakest answer counts: failed, asked, unknown, off.
        """
        answers = await self._post_to_all(f"/workers/{worker_id}/drain", _DRAIN_BODY)
        # The weakest answer counts: a drain is only complete if every selector drains the worker.
        order = (DrainAnswer.FAILED, DrainAnswer.ASKED, DrainAnswer.UNKNOWN, DrainAnswer.HEALTH_OFF)
        answer = next((word for word in order if word in answers), DrainAnswer.HEALTH_OFF)
        if answer == DrainAnswer.HEALTH_OFF and not self._has_logged_health_off:
            self._has_logged_health_off = True
            log.warning("health checks off at selectors, replicas removed undrained")
        return answer

    async def undrain_worker(self, worker_id: int) -> bool:
        """Undrain a worker at all selectors. False if one failed and keeps the worker out."""
        answers = await self._post_to_all(f"/workers/{worker_id}/undrain", _UNDRAIN_BODY)
        for url, answer in zip(self._urls, answers, strict=True):
            if answer != DrainAnswer.FAILED:
                self._logged_failures.discard(url)
            elif url not in self._logged_failures:
                self._logged_failures.add(url)
                fields = {"worker_id": worker_id, "selector": url}
                log.warning("undrain failed, worker still draining", extra={"fields": fields})
        return DrainAnswer.FAILED not in answers

    async def read_remainders(self, worker_ids: Sequence[int]) -> dict[int, DrainRemainder] | None:
        """Return the remainders over all selectors; None while a selector is silent.

        Workers that are missing at any selector are omitted.
        """
        answers = await asyncio.gather(*(self._read_remainders_at(url) for url in self._urls))
        # Every selector has other reservations, so numbers add up, and a worker serves if any
        # selector still uses the worker.
        found = dict.fromkeys(worker_ids, DrainRemainder(0, False, 0))
        for answer in answers:
            if answer is None:
                return None
            known = set()
            for worker_id, left in answer:
                if (before := found.get(worker_id)) is not None:
                    found[worker_id] = DrainRemainder(
                        before.reservations + left.reservations,
                        before.serves or left.serves,
                        # A worker has several ranks in an answer, but counts once per selector.
                        before.known_to + (worker_id not in known),
                    )
                    known.add(worker_id)
        return {w: left for w, left in found.items() if left.known_to == len(self._urls)}

    async def _read_remainders_at(self, url: str) -> list[tuple[int, DrainRemainder]] | None:
        """Return the remainders by rank with health checks, else by worker.

        None if the selector is silent.
        """
        fleet = await self._read_answer(f"{url}/health/fleet", _Fleet)
        if fleet is not None:
            ranks = [rank for part in fleet.partitions for rank in part.ranks]
            return [(r.worker_id, DrainRemainder(r.reservations, r.weight > 0.0)) for r in ranks]
        workers = await self._read_answer(f"{url}/workers", list[_Worker])
        if workers is None:
            return None
        return [
            (
                worker.worker_id,
                DrainRemainder(0, True)
                if worker.drain is None
                else DrainRemainder(worker.drain.reservations, False),
            )
            for worker in workers
            if worker.lifecycle == "schedulable"
        ]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _post_to_all(self, path: str, body: bytes) -> list[DrainAnswer]:
        """Send a request to all selectors and return the answers, in the order of the URLs."""
        return await asyncio.gather(*(self._post_request(url + path, body) for url in self._urls))

    async def _post_request(self, url: str, body: bytes) -> DrainAnswer:
        """Send a request and return the meaning of the answer."""
        try:
            await self._http.post(url, body, token_file=self._key_file, timeout_s=TIMEOUT_S)
        except HttpError as error:
            return _drain_answer_of(error)
        return DrainAnswer.ASKED

    async def _read_answer(self, url: str, kind: type[_Answer]) -> _Answer | None:
        """Return the decoded answer, or None."""
        try:
            content = await self._http.get(
                url, self._scope, token_file=self._key_file, timeout_s=TIMEOUT_S
            )
            # Answers of large fleets have megabytes, and would block the event loop.
            return await asyncio.to_thread(msgspec.json.decode, content, type=kind)
        except (HttpError, *DECODE_ERRORS):
            return None


def _drain_answer_of(refusal: HttpError) -> DrainAnswer:
    """Return the meaning of an error answer."""
    if refusal.status not in (_CONFLICT, _NOT_FOUND):
        return DrainAnswer.FAILED
    is_off = decode_refusal(refusal.body).code == "health_off"
    return DrainAnswer.HEALTH_OFF if is_off else DrainAnswer.UNKNOWN


def decode_refusal(body: bytes) -> SelectorRefusal:
    """Decode an error answer."""
    try:
        return msgspec.json.decode(body, type=SelectorRefusal)
    except DECODE_ERRORS:
        return SelectorRefusal()


def _join_loads(workers: Sequence[_Worker], loads: Sequence[_Load]) -> list[WorkerLoad]:
    """Join workers with the sums of the ranks' loads."""
    blocks: dict[int, int] = {}
    for load in loads:
        before = blocks.get(load.worker_id, 0)
        blocks[load.worker_id] = before + load.potential_decode_blocks
    return [
        WorkerLoad(
            worker.worker_id,
            worker_role(worker.role),
            _endpoint_host(worker.endpoint),
            blocks[known],
            drains=worker.drain is not None
            or (worker.health is not None and worker.health.state == _DRAINING),
            is_lost=worker.health is not None and worker.health.is_lost,
        )
        for worker in workers
        if worker.lifecycle == "schedulable" and (known := worker.worker_id) in blocks
    ]


def _endpoint_host(endpoint: str | None) -> str:
    """Return the host of an endpoint, or an empty string."""
    try:
        return urlsplit(endpoint or "").hostname or ""
    except ValueError:
        return ""

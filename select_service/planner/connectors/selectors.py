"""What a connector asks of selectors: who has how much to do, and that workers drain.

Every selector has its own view of health, so a worker drains at all of them, and is drained when
nothing is left at any.  One that cannot be reached now is asked again at the next step.
"""

import asyncio
import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from select_service.planner.core.inputs import (
    Role,
    role_of,
)
from select_service.planner.outbound import Outbound, Unreachable
from select_service.tls.kept import ClientTls
from select_service.unreadable_json import UNREADABLE

log = logging.getLogger("select_service.planner.connectors")

TIMEOUT_S = 5.0
"""Of one request."""
LOADS_TIMEOUT_S = 10.0
"""Of all that are asked, one after the other, for who has how much to do."""
_CONFLICT, _NOT_FOUND = 409, 404
_DRAINING = "draining"
_STAY = b'{"migrate": false, "by": "planner"}'
"""Requests end where they are: not every caller follows moves."""
_SERVE = b'{"by": "planner"}'
"""What operators drain goes on draining."""


class Drained(StrEnum):
    """What a selector answered to a drain."""

    ASKED = "asked"
    UNKNOWN = "unknown"
    """It knows no such worker: nothing to wait for."""
    HEALTH_OFF = "health_off"
    """It cannot drain at all."""
    FAILED = "failed"


class RankLoad(NamedTuple):
    """One worker, all its ranks together. host: of its endpoint, where it is known

    drains: it goes already, or somebody else has taken it out
    """

    worker_id: int
    role: Role
    host: str
    active_blocks: int
    cached_blocks: int = 0
    drains: bool = False


class Left(NamedTuple):
    """What a worker that drains has left. serves: it gets new requests, as after a restart of a
    selector, which forgets who drains;  known_to: so many selectors"""

    reservations: int
    serves: bool
    known_to: int = 1


class _Health(Struct):
    state: str


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


class _Refusal(Struct):
    code: str = ""


_Answer = TypeVar("_Answer")


class Selectors:
    """urls: of the replicas that serve one model and tenant;  key_file: holds the key that they
    ask for;  tls: as in `Outbound`"""

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
        self._http = Outbound(tls)
        self._told_off = False
        self._told_deaf: set[str] = set()

    async def loads(self) -> list[RankLoad] | None:
        """The workers of the first selector that answers; None when none does in time."""
        try:
            async with asyncio.timeout(LOADS_TIMEOUT_S):
                for url in self._urls:
                    workers = await self._read(f"{url}/workers", list[_Worker])
                    parts = await self._read(f"{url}/loads", list[_Partition])
                    if workers is not None and parts is not None:
                        return _joined(workers, [load for part in parts for load in part.loads])
        except TimeoutError:
            pass
        return None

    async def drain(self, worker_id: int) -> Drained:
        """At all selectors; the answer is the weakest of theirs: failed, asked, unknown, off."""
        answers = await asyncio.gather(
            *(self._post(f"{url}/workers/{worker_id}/drain", _STAY) for url in self._urls)
        )
        order = (Drained.FAILED, Drained.ASKED, Drained.UNKNOWN, Drained.HEALTH_OFF)
        answer = next((word for word in order if word in answers), Drained.HEALTH_OFF)
        if answer == Drained.HEALTH_OFF and not self._told_off:
            self._told_off = True
            log.warning(
                "selectors do not check health (--health-checks on): replicas are taken away "
                "without draining"
            )
        return answer

    async def undrain(self, worker_id: int) -> bool:
        """At all selectors. False: one did not hear it, and keeps the worker out."""
        answers = await asyncio.gather(
            *(self._post(f"{url}/workers/{worker_id}/undrain", _SERVE) for url in self._urls)
        )
        for url, answer in zip(self._urls, answers, strict=True):
            if answer != Drained.FAILED:
                self._told_deaf.discard(url)
            elif url not in self._told_deaf:
                self._told_deaf.add(url)
                fields = {"worker_id": worker_id, "selector": url}
                log.warning("a worker still drains there", extra={"fields": fields})
        return Drained.FAILED not in answers

    async def left(self, worker_ids: Sequence[int]) -> dict[int, Left] | None:
        """Of each, at all selectors together, without those that one of them does not know; None
        while one of them is silent."""
        answers = await asyncio.gather(*(self._left_at(url) for url in self._urls))
        found = dict.fromkeys(worker_ids, Left(0, False, 0))
        for answer in answers:
            if answer is None:
                return None
            known = set()
            for worker_id, left in answer:
                if (before := found.get(worker_id)) is not None:
                    found[worker_id] = Left(
                        before.reservations + left.reservations,
                        before.serves or left.serves,
                        before.known_to + (worker_id not in known),
                    )
                    known.add(worker_id)
        return {w: left for w, left in found.items() if left.known_to == len(self._urls)}

    async def _left_at(self, url: str) -> list[tuple[int, Left]] | None:
        """By rank where health is watched, else by worker; None: the selector is silent."""
        fleet = await self._read(f"{url}/health/fleet", _Fleet)
        if fleet is not None:
            ranks = [rank for part in fleet.partitions for rank in part.ranks]
            return [(r.worker_id, Left(r.reservations, r.weight > 0.0)) for r in ranks]
        workers = await self._read(f"{url}/workers", list[_Worker])
        if workers is None:
            return None
        there = [worker for worker in workers if worker.lifecycle == "schedulable"]
        return [(w.worker_id, _left_of(w.drain)) for w in there]

    async def close(self) -> None:
        """Connections are closed."""
        await self._http.close()

    async def _post(self, url: str, body: bytes) -> Drained:
        try:
            await self._http.post(url, body, token_file=self._key_file, timeout_s=TIMEOUT_S)
        except Unreachable as error:
            return _meaning(error)
        return Drained.ASKED

    async def _read(self, url: str, kind: type[_Answer]) -> _Answer | None:
        """None: no answer that can be read."""
        try:
            content = await self._http.get(
                url, self._scope, token_file=self._key_file, timeout_s=TIMEOUT_S
            )
            return await asyncio.to_thread(msgspec.json.decode, content, type=kind)
        except (Unreachable, *UNREADABLE):
            return None


def _meaning(refusal: Unreachable) -> Drained:
    if refusal.status not in (_CONFLICT, _NOT_FOUND):
        return Drained.FAILED
    try:
        code = msgspec.json.decode(refusal.body, type=_Refusal).code
    except UNREADABLE:
        code = ""
    return Drained.HEALTH_OFF if code == "health_off" else Drained.UNKNOWN


def _joined(workers: Sequence[_Worker], loads: Sequence[_Load]) -> list[RankLoad]:
    blocks: dict[int, int] = {}
    for load in loads:
        before = blocks.get(load.worker_id, 0)
        blocks[load.worker_id] = before + load.potential_decode_blocks
    return [
        RankLoad(
            worker.worker_id,
            role_of(worker.role),
            _host(worker.endpoint),
            blocks[known],
            drains=_drains(worker),
        )
        for worker in workers
        if worker.lifecycle == "schedulable" and (known := worker.worker_id) in blocks
    ]


def _drains(worker: _Worker) -> bool:
    is_out = worker.health is not None and worker.health.state == _DRAINING
    return is_out or worker.drain is not None


def _left_of(drain: _Drain | None) -> Left:
    return Left(0, True) if drain is None else Left(drain.reservations, False)


def _host(endpoint: str | None) -> str:
    try:
        return urlsplit(endpoint or "").hostname or ""
    except ValueError:
        return ""

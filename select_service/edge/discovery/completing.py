"""From engines that a source has found to the workers that it says.

Each engine is asked what it is: when it is found, when another one may stand behind its address,
and now and then.  One that has not answered yet is withheld: it is not registered, and a worker
that it was before stays as it is.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.candidates import Candidate, completed
from select_service.core.discovery.template import Fields
from select_service.edge.discovery.asking import facts_from
from select_service.edge.discovery.source import Readings
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError

ASKED_MAX = 32
"""Engines that are asked at a time."""
AGAIN_S, AGAIN_S_MAX = 2.0, 60.0
"""From a failure to the next attempt: twice as long each time."""
REFRESH_S = 300.0
"""From an answer to the next question."""
GATHER_S = 0.1
"""What comes within it becomes one change of the catalog."""
NEEDED = ("model_name", "block_size")
"""Of fields that neither the template nor the engine says, those for which it is asked again."""
NO_ENGINE = "it answers neither as vLLM nor as SGLang does"

Key: TypeAlias = tuple[str, str]


class _Made(NamedTuple):
    """A record or what is wrong with it, and of what it was made."""

    candidate: Candidate
    said: Fields
    record: WorkerRegistration | str


class Completing:
    """Belongs to one event loop."""

    def __init__(self, readings: Readings, http: HttpClient | None) -> None:
        """http: None: nobody is asked, and the template says all"""
        self._readings = readings
        self._http = http
        self._wanted: Mapping[Key, Candidate] | None = None
        self._said: dict[Key, Fields] = {}
        self._faults: dict[Key, str] = {}
        self._asking: set[Key] = set()
        self._made: dict[Key, _Made] = {}
        self._permits = asyncio.Semaphore(ASKED_MAX)
        self._work = asyncio.Event()

    def want(self, candidates: Sequence[Candidate]) -> None:
        """All that the source has found.  Not to be changed afterwards."""
        self._wanted = {each.key: each for each in candidates}
        for known in (self._said, self._faults, self._made):
            for key in [key for key in known if key not in self._wanted]:
                del known[key]
        self._work.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as questions:
            while True:
                await self._work.wait()
                self._work.clear()
                for key in self._wanted or ():
                    if self._http is not None and key not in self._asking:
                        self._asking.add(key)
                        questions.create_task(self._ask(self._http, key))
                await self._tell()
                await asyncio.sleep(GATHER_S)

    # --- questions

    async def _ask(self, http: HttpClient, key: Key) -> None:
        """As long as it is wanted."""
        again_s = AGAIN_S
        while self._is_wanted(key):
            async with self._permits:
                is_good = await self._answered(http, key)
            again_s = AGAIN_S if is_good else again_s
            await asyncio.sleep(REFRESH_S if is_good else again_s)
            again_s = min(2.0 * again_s, AGAIN_S_MAX)
        self._asking.discard(key)

    async def _answered(self, http: HttpClient, key: Key) -> bool:
        """Does one know all that is needed?"""
        try:
            facts = await facts_from(http, key[0])
        except HttpError as error:
            fault = str(error)
        else:
            fault = NO_ENGINE if facts.engine is None else ""
        if not self._is_wanted(key):
            return True
        if fault:
            if fault != self._faults.get(key):
                self._faults[key] = fault
                self._work.set()
            return False
        if facts.fields != self._said.get(key):
            self._said[key] = facts.fields
            self._work.set()
        self._faults.pop(key, None)
        given = self._wanted[key].fields if self._wanted is not None else {}
        return all(name in facts.fields or name in given for name in NEEDED)

    def _is_wanted(self, key: Key) -> bool:
        return self._wanted is not None and key in self._wanted

    # --- what follows from the answers

    async def _tell(self) -> None:
        wanted = self._wanted
        if wanted is None:
            return
        ready = {
            key: (each, said)
            for key, each in wanted.items()
            if (said := self._known(key)) is not None
        }
        new = {key: pair for key, pair in ready.items() if not self._is_made(key, *pair)}
        if new:
            self._made |= await asyncio.to_thread(_made, new)
        desired: dict[int, WorkerRegistration] = {}
        withheld = {
            key[0]: self._faults.get(key, "it has not answered yet")
            for key in wanted.keys() - ready.keys()
        }
        for key in ready:
            record = self._made[key].record
            if isinstance(record, str):
                withheld[key[0]] = record
            elif record.worker_id in desired:
                withheld[key[0]] = f"another one has the worker_id {record.worker_id}"
            else:
                desired[record.worker_id] = record
        undecided = {each.worker_id for key, each in wanted.items() if key[0] in withheld}
        self._readings.says(desired, frozenset(undecided - desired.keys()), withheld)

    def _known(self, key: Key) -> Fields | None:
        return {} if self._http is None else self._said.get(key)

    def _is_made(self, key: Key, candidate: Candidate, said: Fields) -> bool:
        made = self._made.get(key)
        return made is not None and (made.candidate, made.said) == (candidate, said)


def _made(pairs: Mapping[Key, tuple[Candidate, Fields]]) -> dict[Key, _Made]:
    """Takes some 15 us each."""
    return {key: _Made(*pair, _record(*pair)) for key, pair in pairs.items()}


def _record(candidate: Candidate, said: Fields) -> WorkerRegistration | str:
    try:
        return completed(candidate, said)
    except ValueError as error:
        return str(error)

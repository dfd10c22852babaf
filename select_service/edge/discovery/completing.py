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
BEGUN_PER_TURN_MAX = 32
"""Questions."""
UNANSWERED = "it has not answered yet"
NO_ENGINE = "it answers neither as vLLM nor as SGLang does"

Key: TypeAlias = tuple[str, str]


class _Made(NamedTuple):
    """A record or what is wrong with it, and of what it was made."""

    candidate: Candidate
    said: Fields
    record: WorkerRegistration | str


class _Told(NamedTuple):
    """See `Readings.says`."""

    desired: dict[int, WorkerRegistration]
    undecided: frozenset[int]
    withheld: dict[str, str]


class Completing:
    """Belongs to one event loop."""

    def __init__(self, readings: Readings, http: HttpClient | None) -> None:
        """http: None: nobody is asked, and the template says all"""
        self._readings = readings
        self._http = http
        self._wanted: Mapping[Key, Candidate] | None = None
        self._said: dict[Key, Fields] = {}
        self._wrong: Mapping[str, str] = {}
        self._faults: dict[Key, str] = {}
        self._asking: set[Key] = set()
        self._made: dict[Key, _Made] = {}
        self._permits = asyncio.Semaphore(ASKED_MAX)
        self._work = asyncio.Event()

    def want(self, candidates: Sequence[Candidate], wrong: Mapping[str, str] | None = None) -> None:
        """All that the source has found.  Not to be changed afterwards.

        wrong: what it has found besides and cannot be asked, by its name, and why
        """
        self._wanted = {each.key: each for each in candidates}
        self._wrong = wrong or {}
        for known in (self._said, self._faults):
            for key in [key for key in known if key not in self._wanted]:
                del known[key]
        self._work.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as questions:
            while True:
                await self._work.wait()
                self._work.clear()
                if self._http is not None:
                    await self._begin(questions, self._http)
                await self._tell()
                await asyncio.sleep(GATHER_S)

    async def _begin(self, questions: asyncio.TaskGroup, http: HttpClient) -> None:
        """With those that are not asked yet, some a turn."""
        new = [key for key in self._wanted or () if key not in self._asking]
        for number, key in enumerate(new, 1):
            self._asking.add(key)
            questions.create_task(self._ask(http, key))
            if number % BEGUN_PER_TURN_MAX == 0:
                await asyncio.sleep(0)

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
        """Made on a thread: of a thousand engines it takes some milliseconds."""
        wanted, wrong = self._wanted, self._wrong
        if wanted is None:
            return
        said = None if self._http is None else dict(self._said)
        self._made = await asyncio.to_thread(_made, wanted, said, self._made)
        told = await asyncio.to_thread(_told, wanted, self._made, dict(self._faults))
        self._readings.says(told.desired, told.undecided, {**wrong, **told.withheld})


def _made(
    wanted: Mapping[Key, Candidate], said: Mapping[Key, Fields] | None, before: Mapping[Key, _Made]
) -> dict[Key, _Made]:
    """Of those that are known.  said: by engines; None: they are not asked

    before: what is made of the same stays
    """
    made: dict[Key, _Made] = {}
    for key, candidate in wanted.items():
        fields = {} if said is None else said.get(key)
        if fields is None:
            continue
        old = before.get(key)
        is_same = old is not None and (old.candidate, old.said) == (candidate, fields)
        new = _Made(candidate, fields, _record(candidate, fields)) if not is_same else old
        assert new is not None
        made[key] = new
    return made


def _record(candidate: Candidate, said: Fields) -> WorkerRegistration | str:
    try:
        return completed(candidate, said)
    except ValueError as error:
        return str(error)


def _told(
    wanted: Mapping[Key, Candidate], made: Mapping[Key, _Made], faults: Mapping[Key, str]
) -> _Told:
    desired: dict[int, WorkerRegistration] = {}
    withheld: dict[Key, str] = {}
    for key in wanted:
        record = made[key].record if key in made else faults.get(key, UNANSWERED)
        if isinstance(record, str):
            withheld[key] = record
        elif record.worker_id in desired:
            withheld[key] = f"another one has the worker_id {record.worker_id}"
        else:
            desired[record.worker_id] = record
    undecided = frozenset(wanted[key].worker_id for key in withheld) - desired.keys()
    return _Told(desired, undecided, {key[0]: why for key, why in withheld.items()})

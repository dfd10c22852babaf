"""Prober that turns the engines found by a source into worker registrations.

Each engine is queried when found, when another engine may have taken over the address, and
periodically.  An engine without an answer so far is withheld: it is not registered, and an existing
worker with its id stays unchanged.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from select_service.adapters.discovery.probe_engine import fetch_engine_facts
from select_service.adapters.discovery.source_status import SourceStatus
from select_service.adapters.http_get import HttpClient
from select_service.core.registry.discovery.engine_candidates import (
    EngineCandidate,
    complete_record,
)
from select_service.core.registry.discovery.record_template import Fields
from select_service.net.http_client.http_error import HttpError
from select_service.schemas.workers import WorkerRegistration

CONCURRENT_QUERIES_MAX = 32
"""Maximum number of concurrent queries."""
RETRY_S, RETRY_S_MAX = 2.0, 60.0
"""First and longest delay after a failure, in seconds; the delay doubles each time."""
REFRESH_S = 300.0
"""Interval between a successful query and the next, in seconds."""
GATHER_S = 0.1
"""Period within which results are merged into one catalog change, in seconds."""
NEEDED_FIELDS = ("model_name", "block_size")
"""Fields without which an engine is queried again soon, unless the template has them."""
QUERIES_STARTED_MAX = 32
"""Maximum number of queries started per event loop iteration."""
NO_ANSWER_YET = "no answer yet"
NO_ENGINE = "the answers match neither vLLM nor SGLang"

Key: TypeAlias = tuple[str, str]


class _BuiltRegistration(NamedTuple):
    """Registration (or its error) and the inputs from which it was made."""

    candidate: EngineCandidate
    said: Fields
    record: WorkerRegistration | str


class _PublishedWorkers(NamedTuple):
    """Arguments of `SourceStatus.publish_workers`."""

    desired: dict[int, WorkerRegistration]
    undecided: frozenset[int]
    withheld: dict[str, str]


class EngineProber:
    """Prober of the engines of one source.  Belongs to one event loop."""

    def __init__(self, readings: SourceStatus, http: HttpClient | None) -> None:
        """http: client for the queries.

        None means that no engine is queried and the template is complete
        """
        self._readings = readings
        self._http = http
        self._candidates: Mapping[Key, EngineCandidate] | None = None
        self._facts: dict[Key, Fields] = {}
        self._source_errors: Mapping[str, str] = {}
        self._query_errors: dict[Key, str] = {}
        self._queried: set[Key] = set()
        self._registrations: dict[Key, _BuiltRegistration] = {}
        self._permits = asyncio.Semaphore(CONCURRENT_QUERIES_MAX)
        self._work = asyncio.Event()

    def set_candidates(
        self, candidates: Sequence[EngineCandidate], wrong: Mapping[str, str] | None = None
    ) -> None:
        """Set all candidates found by the source.  The sequence must not be changed afterwards.

        wrong: errors of findings that cannot be queried, by name
        """
        self._candidates = {each.key: each for each in candidates}
        self._source_errors = wrong or {}
        for known in (self._facts, self._query_errors):
            for key in [key for key in known if key not in self._candidates]:
                del known[key]
        self._work.set()

    async def run_prober(self) -> None:
        """Query engines and publish results until cancelled."""
        async with asyncio.TaskGroup() as questions:
            while True:
                await self._work.wait()
                self._work.clear()
                if self._http is not None:
                    await self._start_queries(questions, self._http)
                await self._publish_workers()
                await asyncio.sleep(GATHER_S)

    async def _start_queries(self, questions: asyncio.TaskGroup, http: HttpClient) -> None:
        """Start queries of new engines, a bounded number per event loop iteration."""
        new = [key for key in self._candidates or () if key not in self._queried]
        for number, key in enumerate(new, 1):
            self._queried.add(key)
            questions.create_task(self._query_repeatedly(http, key))
            if number % QUERIES_STARTED_MAX == 0:
                await asyncio.sleep(0)

    # Queries to engines.

    async def _query_repeatedly(self, http: HttpClient, key: Key) -> None:
        """Query an engine repeatedly while it is a candidate."""
        again_s = RETRY_S
        while self._is_candidate(key):
            async with self._permits:
                is_good = await self._query_once(http, key)
            again_s = RETRY_S if is_good else again_s
            # Repeated after success too: an engine may be replaced behind the same address.
            await asyncio.sleep(REFRESH_S if is_good else again_s)
            again_s = min(2.0 * again_s, RETRY_S_MAX)
        # An engine that comes back is queried at once.
        self._queried.discard(key)

    async def _query_once(self, http: HttpClient, key: Key) -> bool:
        """Query an engine once; return whether all needed fields are available."""
        try:
            facts = await fetch_engine_facts(http, key[0])
        except HttpError as error:
            fault = str(error)
        else:
            fault = NO_ENGINE if facts.engine is None else ""
        # The engine may have left the source during the query; a late answer must not bring it
        # back.
        if not self._is_candidate(key):
            return True
        if fault:
            if fault != self._query_errors.get(key):
                self._query_errors[key] = fault
                self._work.set()
            return False
        if facts.fields != self._facts.get(key):
            self._facts[key] = facts.fields
            self._work.set()
        self._query_errors.pop(key, None)
        given = self._candidates[key].fields if self._candidates is not None else {}
        return all(name in facts.fields or name in given for name in NEEDED_FIELDS)

    def _is_candidate(self, key: Key) -> bool:
        return self._candidates is not None and key in self._candidates

    # Registrations from the answers.

    async def _publish_workers(self) -> None:
        """Build and publish the registrations, on a thread: some milliseconds for a thousand
        engines.
        """
        wanted, wrong = self._candidates, self._source_errors
        if wanted is None:
            return
        said = None if self._http is None else dict(self._facts)
        # Copies go to the thread: `set_candidates` and the queries may change the tables meanwhile.
        self._registrations = await asyncio.to_thread(
            _build_registrations, wanted, said, self._registrations
        )
        told = await asyncio.to_thread(
            _collect_published, wanted, self._registrations, dict(self._query_errors)
        )
        self._readings.publish_workers(told.desired, told.undecided, {**wrong, **told.withheld})


def _build_registrations(
    wanted: Mapping[Key, EngineCandidate],
    said: Mapping[Key, Fields] | None,
    before: Mapping[Key, _BuiltRegistration],
) -> dict[Key, _BuiltRegistration]:
    """Return the registrations of all engines with known facts.

    said: facts by engine; None means that engines are not queried
    before: previous result, reused for unchanged inputs
    """
    made: dict[Key, _BuiltRegistration] = {}
    for key, candidate in wanted.items():
        fields = {} if said is None else said.get(key)
        if fields is None:
            continue
        old = before.get(key)
        is_same = old is not None and (old.candidate, old.said) == (candidate, fields)
        new = (
            _BuiltRegistration(candidate, fields, _build_registration(candidate, fields))
            if not is_same
            else old
        )
        assert new is not None
        made[key] = new
    return made


def _build_registration(candidate: EngineCandidate, said: Fields) -> WorkerRegistration | str:
    try:
        return complete_record(candidate, said)
    except ValueError as error:
        return str(error)


def _collect_published(
    wanted: Mapping[Key, EngineCandidate],
    made: Mapping[Key, _BuiltRegistration],
    faults: Mapping[Key, str],
) -> _PublishedWorkers:
    desired: dict[int, WorkerRegistration] = {}
    withheld: dict[Key, str] = {}
    for key in wanted:
        record = made[key].record if key in made else faults.get(key, NO_ANSWER_YET)
        if isinstance(record, str):
            withheld[key] = record
        elif record.worker_id in desired:
            withheld[key] = f"worker_id {record.worker_id} is already used by another engine"
        else:
            desired[record.worker_id] = record
    # Ids claimed by another engine are decided; the rest must be neither added nor removed.
    undecided = frozenset(wanted[key].worker_id for key in withheld) - desired.keys()
    return _PublishedWorkers(desired, undecided, {key[0]: why for key, why in withheld.items()})

"""The catalog of every selector follows what there is in Ray: actors, replicas of Serve, or one
worker that follows itself.

A source says which workers there should be now; a follower registers them at every selector and
removes those that it registered and that are gone.  A selector that started anew, or moved to
another node, is found and filled in the next turn, whoever forgot it.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import httpx

from select_service.bodies.workers import WorkerRegistration
from select_service.ray.credentials import Credentials
from select_service.ray.one_selector import OneSelector

INTERVAL_S = 2.0
"""Between two looks; a worker that dies is chosen for so long, unless its health is checked."""
SELECTORS_AT_ONCE = 8
REMEMBERED_MAX = 65_536
"""Workers that a follower has registered at some time, and removes wherever it meets them again."""

log = logging.getLogger("select_service.ray")


class Seen(NamedTuple):
    """What a source has found.

    is_complete: nobody is missing who might still be alive, so that what is not among `workers`
        may be removed
    """

    workers: Sequence[WorkerRegistration]
    is_complete: bool


Source = Callable[[], Seen]


class Follower:
    """Repeats its turns on a thread of its own until it is closed."""

    def __init__(
        self,
        source: Source,
        urls: Callable[[], Iterable[str]],
        *,
        interval_s: float = INTERVAL_S,
        revives: bool = True,
        api_key_file: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """urls: of all selectors, asked for anew in each turn; raises LookupError for none.

        revives: register what somebody else has deleted and the source still has
        api_key_file, ca_file: see `deploy`; the key needs the role operator.
        Raises ValueError for one that cannot be read.
        """
        self._credentials = Credentials(api_key_file, ca_file)
        self._credentials.options()
        self._source = source
        self._urls = urls
        self._interval_s = interval_s
        self._revives = revives
        self._mine: dict[int, None] = {}
        self._told: dict[str, dict[int, WorkerRegistration]] = {}
        self._turns = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="catalog", daemon=True)
        self._thread.start()

    def turn(self) -> int:
        """Look once, and bring all selectors in step.  How many selectors are."""
        with self._turns:
            seen = self._source()
            wanted = {worker.worker_id: worker for worker in seen.workers}
            self._remember(wanted)
            gone = self._mine.keys() - wanted.keys() if seen.is_complete else set()
            return self._at_all(lambda url: self._bring_in_step(url, wanted, gone))

    def close(self, *, remove: bool = True) -> None:
        """Follow no longer.  remove: take what was registered out of all selectors."""
        if self._closing.is_set():
            return
        self._closing.set()
        with self._turns:
            if remove:
                self._at_all(lambda url: self._bring_in_step(url, {}, set(self._mine)))

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.turn()
            except LookupError:
                pass  # no selector answers; the next turn finds those that start
            except Exception:  # of a source or of Ray's control plane
                log.exception("workers could not be looked up")
            self._closing.wait(self._interval_s)

    def _remember(self, worker_ids: Iterable[int]) -> None:
        """All there ever were: a selector that was out of reach may come back with old ones."""
        self._mine.update(dict.fromkeys(worker_ids))
        while len(self._mine) > REMEMBERED_MAX:
            del self._mine[next(iter(self._mine))]

    def _at_all(self, act: Callable[[str], bool]) -> int:
        urls = list(self._urls())
        self._told = {url: self._told.get(url, {}) for url in urls}
        with ThreadPoolExecutor(SELECTORS_AT_ONCE) as pool:
            return sum(pool.map(act, urls))

    def _bring_in_step(
        self, url: str, wanted: dict[int, WorkerRegistration], gone: set[int]
    ) -> bool:
        """Only what differs is sent: what this selector lacks, and what has changed since."""
        told = self._told[url]
        with suppress(httpx.HTTPError), OneSelector(url, self._credentials) as selector:
            known = selector.known()
            for worker_id, worker in wanted.items():
                if known.get(worker_id) is False and not self._revives:
                    continue
                if not known.get(worker_id) or told.get(worker_id, worker) != worker:
                    selector.register(worker)
                told[worker_id] = worker
            for worker_id in gone:
                if known.get(worker_id):
                    selector.remove(worker_id)
                told.pop(worker_id, None)
            return True
        return False

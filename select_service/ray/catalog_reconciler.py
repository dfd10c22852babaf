"""Reconciliation of the catalogs of all selectors with the workers in Ray.

A source returns the desired workers; a follower registers the workers at every selector and
removes registered workers that are gone. A selector that restarted or moved to another node is
found and filled in the next turn.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from select_service.net.http_client.http_error import HttpError
from select_service.ray.credentials import Credentials
from select_service.ray.selector_client import SingleSelector
from select_service.schemas.workers import WorkerRegistration

INTERVAL_S = 2.0
"""Time between two turns, in seconds. A dead worker stays eligible for this time, unless its health
is checked.
"""
CONCURRENT_SELECTORS_MAX = 8
REMEMBERED_MAX = 65_536
"""Limit of remembered workers; a follower removes a remembered worker wherever an old copy appears.
"""

log = logging.getLogger("select_service.ray")


class Seen(NamedTuple):
    """Workers that a source has found.

    is_complete: whether every living worker is included, so that all others may be removed
    """

    workers: Sequence[WorkerRegistration]
    is_complete: bool


Source = Callable[[], Seen]


class Follower:
    """Reconciler that runs a turn every `interval_s` seconds on a thread until `close`."""

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
        """urls: function that returns the URLs of all selectors, called in each turn; raises
        LookupError if
            there is none

        revives: register again a worker of the source that was deleted by other callers
        api_key_file, ca_file: see `deploy`; the key needs the role operator
        Raises ValueError for an unreadable file.
        """
        self._credentials = Credentials(api_key_file, ca_file)
        # Read once here, so that a wrong file fails at the start and not in a thread.
        self._credentials.client_options()
        self._source = source
        self._urls = urls
        self._interval_s = interval_s
        self._revives = revives
        self._ever_registered: dict[int, None] = {}
        self._sent: dict[str, dict[int, WorkerRegistration]] = {}
        self._turn_lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run_turns, name="catalog", daemon=True)
        self._thread.start()

    def turn(self) -> int:
        """Read the source once, update all selectors and return the number of updated selectors."""
        with self._turn_lock:
            seen = self._source()
            wanted = {worker.worker_id: worker for worker in seen.workers}
            self._remember_workers(wanted)
            # Without a complete view a missing worker may only be slow to describe itself.
            gone = self._ever_registered.keys() - wanted.keys() if seen.is_complete else set()
            return self._at_all_selectors(lambda url: self._reconcile_selector(url, wanted, gone))

    def close(self, *, remove: bool = True) -> None:
        """End the turns.  remove: remove all registered workers from all selectors"""
        if self._closing.is_set():
            return
        self._closing.set()
        with self._turn_lock:
            if remove:
                self._at_all_selectors(
                    lambda url: self._reconcile_selector(url, {}, set(self._ever_registered))
                )

    def _run_turns(self) -> None:
        while not self._closing.is_set():
            try:
                self.turn()
            except LookupError:
                pass  # no selector answers; the next turn looks again
            except Exception:  # raised by a source or by Ray's control plane
                log.exception("worker source failed")
            self._closing.wait(self._interval_s)

    def _remember_workers(self, worker_ids: Iterable[int]) -> None:
        """Remember all workers ever registered: an unreachable selector may come back with old
        workers.
        """
        self._ever_registered.update(dict.fromkeys(worker_ids))
        while len(self._ever_registered) > REMEMBERED_MAX:
            del self._ever_registered[next(iter(self._ever_registered))]

    def _at_all_selectors(self, act: Callable[[str], bool]) -> int:
        urls = list(self._urls())
        # Entries of selectors that are gone would pile up.
        self._sent = {url: self._sent.get(url, {}) for url in urls}
        with ThreadPoolExecutor(CONCURRENT_SELECTORS_MAX) as pool:
            return sum(pool.map(act, urls))

    def _reconcile_selector(
        self, url: str, wanted: dict[int, WorkerRegistration], gone: set[int]
    ) -> bool:
        """Send the differences to a selector and return whether all calls succeeded."""
        told = self._sent[url]
        with suppress(HttpError), SingleSelector(url, self._credentials) as selector:
            known = selector.registration_states()
            for worker_id, worker in wanted.items():
                # False is a tombstone: other callers deleted the worker on purpose.
                if known.get(worker_id) is False and not self._revives:
                    continue
                if not known.get(worker_id) or told.get(worker_id, worker) != worker:
                    selector.register(worker)
                told[worker_id] = worker
            for worker_id in gone:
                if known.get(worker_id):
                    selector.remove_worker(worker_id)
                told.pop(worker_id, None)
            return True
        return False

"""Client of one particular selector, for calls that must reach every selector.

The choice of a selector, repeats and renewals belong to `select_service.client`.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Self

import httpx
import msgspec

from select_service.ray.credentials import NO_CREDENTIALS, Credentials
from select_service.schemas.workers import WorkerRecord, WorkerRegistration

CALL_S_MAX = 5.0
"""Time limit of a call, in seconds."""
DELETED = "unschedulable"
REGISTERED_FIELDS = frozenset(WorkerRegistration.__struct_fields__)


class SingleSelector:
    """Calls to one selector. Failed and refused calls raise httpx.HTTPError."""

    def __init__(self, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        """Raises ValueError for an unreadable CA file."""
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            timeout=CALL_S_MAX,
            auth=credentials.make_auth(),
            verify=credentials.ssl_context() or True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def is_healthy(self) -> bool:
        """Return whether the selector answers `GET /health` with 200."""
        try:
            return self._http.get("/health").status_code == HTTPStatus.OK
        except httpx.HTTPError:
            return False

    def add_peer(self, endpoint: str) -> None:
        """Receive the reservations of the replica at this ZMQ endpoint."""
        self._send("POST", "/replica_sync/register_peer", {"endpoint": endpoint})

    def drop_peer(self, endpoint: str) -> None:
        """Stop receiving from the replica at this ZMQ endpoint."""
        self._send("POST", "/replica_sync/deregister_peer", {"endpoint": endpoint})

    def registered_workers(self) -> dict[int, WorkerRegistration]:
        """Return the registrations of all workers that are not deleted, by id."""
        return {r.worker_id: registration_of(r) for r in self._records() if r.lifecycle != DELETED}

    def registration_states(self) -> dict[int, bool]:
        """Return for each worker id whether the worker is registered; False means deleted a while
        ago.
        """
        return {r.worker_id: r.lifecycle != DELETED for r in self._records()}

    def register_worker(self, worker: WorkerRegistration) -> None:
        """Register a worker, or replace its registration."""
        self._send("POST", "/workers", worker)

    def remove_worker(self, worker_id: int) -> None:
        """Remove a worker and its reservations; a missing worker is no error."""
        answer = self._http.delete(f"/workers/{worker_id}")
        # 404 means that another follower was faster.
        if answer.status_code != HTTPStatus.NOT_FOUND:
            answer.raise_for_status()

    def _records(self) -> list[WorkerRecord]:
        answer = self._http.get("/workers").raise_for_status()
        return msgspec.json.decode(answer.content, type=list[WorkerRecord])

    def _send(self, method: str, path: str, body: Any) -> None:
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        self._http.request(method, path, content=content, headers=headers).raise_for_status()


def registration_of(record: WorkerRecord) -> WorkerRegistration:
    """Return the body of POST /workers that produces this record."""
    shown = msgspec.to_builtins(record)
    given = {k: v for k, v in shown.items() if k in REGISTERED_FIELDS and v is not None}
    return msgspec.convert(given, WorkerRegistration, strict=False)


def remove_everywhere(
    urls: Callable[[], Iterable[str]],
    worker_ids: Iterable[int],
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Remove workers from all selectors that answer; followers remove the rest later."""
    with suppress(LookupError):
        for url in urls():
            with suppress(httpx.HTTPError), SingleSelector(url, credentials) as selector:
                for worker_id in worker_ids:
                    selector.remove_worker(worker_id)

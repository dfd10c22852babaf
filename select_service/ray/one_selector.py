"""Calls to one selector, whichever it is: what must reach each of them and not just any.

Choosing among selectors, repeating and renewing is the client's business (`select_service.client`).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Self

import httpx
import msgspec

from select_service.bodies.workers import WorkerRecord, WorkerRegistration
from select_service.ray.credentials import NONE, Credentials

CALL_S_MAX = 5.0
"""Seconds for one call."""
DELETED = "unschedulable"
REGISTERED_FIELDS = frozenset(WorkerRegistration.__struct_fields__)


class OneSelector:
    """Raises httpx.HTTPError when a call fails or is refused."""

    def __init__(self, url: str, credentials: Credentials = NONE) -> None:
        """Raises ValueError for a CA that cannot be read."""
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            timeout=CALL_S_MAX,
            auth=credentials.auth(),
            verify=credentials.ssl_context() or True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def is_healthy(self) -> bool:
        """Does it answer?"""
        try:
            return self._http.get("/health").status_code == HTTPStatus.OK
        except httpx.HTTPError:
            return False

    def add_peer(self, endpoint: str) -> None:
        """Listen to what the replica at this ZMQ endpoint books."""
        self._send("POST", "/replica_sync/register_peer", {"endpoint": endpoint})

    def drop_peer(self, endpoint: str) -> None:
        """Listen to it no longer."""
        self._send("POST", "/replica_sync/deregister_peer", {"endpoint": endpoint})

    def workers(self) -> dict[int, WorkerRegistration]:
        """By id, how the workers that are not deleted were registered."""
        return {r.worker_id: registration(r) for r in self._records() if r.lifecycle != DELETED}

    def known(self) -> dict[int, bool]:
        """By id: is the worker there, or was it deleted a while ago?"""
        return {r.worker_id: r.lifecycle != DELETED for r in self._records()}

    def register(self, worker: WorkerRegistration) -> None:
        """In place of its old record."""
        self._send("POST", "/workers", worker)

    def remove(self, worker_id: int) -> None:
        """With its reservations; it is no error when it is not there."""
        answer = self._http.delete(f"/workers/{worker_id}")
        if answer.status_code != HTTPStatus.NOT_FOUND:
            answer.raise_for_status()

    def _records(self) -> list[WorkerRecord]:
        answer = self._http.get("/workers").raise_for_status()
        return msgspec.json.decode(answer.content, type=list[WorkerRecord])

    def _send(self, method: str, path: str, body: Any) -> None:
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        self._http.request(method, path, content=content, headers=headers).raise_for_status()


def registration(record: WorkerRecord) -> WorkerRegistration:
    """The body of POST /workers that makes this record."""
    shown = msgspec.to_builtins(record)
    given = {k: v for k, v in shown.items() if k in REGISTERED_FIELDS and v is not None}
    return msgspec.convert(given, WorkerRegistration, strict=False)


def remove_everywhere(
    urls: Callable[[], Iterable[str]], worker_ids: Iterable[int], credentials: Credentials = NONE
) -> None:
    """Remove workers from all selectors that answer; followers see to the others."""
    with suppress(LookupError):
        for url in urls():
            with suppress(httpx.HTTPError), OneSelector(url, credentials) as selector:
                for worker_id in worker_ids:
                    selector.remove(worker_id)

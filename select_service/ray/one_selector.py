"""Calls to one selector, whichever it is: what must reach each of them and not just any.

Choosing among selectors, repeating and renewing is the client's business (`select_service.client`).
"""

from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from select_service.bodies.workers import WorkerRecord, WorkerRegistration

CALL_S_MAX = 5.0
"""Seconds for one call."""
DELETED = "unschedulable"
REGISTERED_FIELDS = frozenset(WorkerRegistration.__struct_fields__)


class OneSelector:
    """Raises httpx.HTTPError when a call fails or is refused."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=CALL_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
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
        answer = self._http.get("/workers").raise_for_status()
        records = msgspec.json.decode(answer.content, type=list[WorkerRecord])
        return {r.worker_id: registration(r) for r in records if r.lifecycle != DELETED}

    def worker_ids(self) -> set[int]:
        """Those that are not deleted."""
        return set(self.workers())

    def register(self, worker: WorkerRegistration) -> None:
        """In place of its old record."""
        self._send("POST", "/workers", worker)

    def _send(self, method: str, path: str, body: Any) -> None:
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        self._http.request(method, path, content=content, headers=headers).raise_for_status()


def registration(record: WorkerRecord) -> WorkerRegistration:
    """The body of POST /workers that makes this record."""
    shown = msgspec.to_builtins(record)
    given = {k: v for k, v in shown.items() if k in REGISTERED_FIELDS and v is not None}
    return msgspec.convert(given, WorkerRegistration, strict=False)

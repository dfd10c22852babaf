"""Client of one particular selector, for calls that must reach every selector.

Calls are blocking and sent once: the choice of a selector, repeats and renewals belong to
`select_service.client`; its table of routes is used here.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import msgspec

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.client.route_table import BlockingRoutes, ClientRoute
from select_service.net.http_client.http_error import HttpError
from select_service.ray.credentials import NO_CREDENTIALS, Credentials
from select_service.schemas.workers import WorkerRecord, WorkerRegistration

CALL_S_MAX = 5.0
"""Time limit of a call, in seconds."""
ANSWER_BYTES_MAX = 64 << 20
DELETED = "unschedulable"
REGISTERED_FIELDS = frozenset(WorkerRegistration.__struct_fields__)

P = ParamSpec("P")
A = TypeVar("A")


class SingleSelector(BlockingRoutes):
    """Routes of a selector. Failed and refused calls raise HttpError."""

    def __init__(self, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        """Raises ValueError for an unreadable CA file."""
        self._url = url.rstrip("/")
        key_file = credentials.api_key_file
        self._key_file = None if key_file is None else Path(key_file)
        # Programs that only deploy have no parser of HTTP, which the extra `server` brings.
        from select_service.net.http_client.http_session import HttpRequest, HttpSession

        self._make_request = HttpRequest
        self._session = HttpSession(tls=credentials.client_tls())
        # One event loop for all calls, so that connections are kept between them.
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._runner.run(self._session.close())
        self._runner.close()

    def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route.  Raises HttpError."""
        wanted = route.make_call(*args, **kwargs)
        try:
            return route.decode_answer(self._send(route.method, wanted.target, wanted.fields))
        except DECODE_ERRORS as error:
            text = f"malformed answer to {route.method} {route.path}: {error}"
            raise HttpError("unreadable", text) from None

    def is_healthy(self) -> bool:
        """Return whether the selector answers `GET /health` with 200."""
        try:
            self._send("GET", "/health", None)
        except HttpError:
            return False
        return True

    def registered_workers(self) -> dict[int, WorkerRegistration]:
        """Return the registrations of all workers that are not deleted, by id."""
        return {
            r.worker_id: registration_of(r)
            for r in self.workers(None, None)
            if r.lifecycle != DELETED
        }

    def registration_states(self) -> dict[int, bool]:
        """Return for each worker id whether the worker is registered; False means deleted a while
        ago.
        """
        return {r.worker_id: r.lifecycle != DELETED for r in self.workers(None, None)}

    def remove_worker(self, worker_id: int) -> None:
        """Remove a worker and its reservations; a missing worker is no error."""
        try:
            self.delete_worker(worker_id)
        except HttpError as error:
            # 404 means that another follower was faster.
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _send(self, method: str, target: str, fields: dict[str, Any] | None) -> bytes:
        request = self._make_request(method, self._url + target, token_file=self._key_file)
        if fields is not None:
            headers = {"content-type": "application/json"}
            request = request._replace(headers=headers, body=msgspec.json.encode(fields))
        return self._runner.run(
            self._session.fetch_body(request, bytes_max=ANSWER_BYTES_MAX, timeout_s=CALL_S_MAX)
        )


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
            with suppress(HttpError), SingleSelector(url, credentials) as selector:
                for worker_id in worker_ids:
                    selector.remove_worker(worker_id)

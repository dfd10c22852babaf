"""Interface for requests to an API server, with their errors."""

from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.net.kubernetes_session import KubernetesError

ANSWER_BYTES_MAX = 64 << 20
REQUEST_TIMEOUT_S = 4.0
"""Timeout of a request, below the rest of a lease when a leader may still write."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"

FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 403, 404, 409, 422


class KubernetesApi(Protocol):
    """Requests of an account to a cluster."""

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        """Return the body of a 2xx answer.  path: with its query.  Raises KubernetesError."""
        ...

    async def namespace(self) -> str:
        """Return the namespace of the account.  Raises ConnectorError."""
        ...

    async def close(self) -> None:
        """Close the connections; the next call opens new connections."""
        ...


class _Status(Struct):
    message: str = ""
    reason: str = ""


_Body = TypeVar("_Body")


def answer_error(status: int, content: bytes) -> KubernetesError:
    """Return the error of an answer that is not 2xx."""
    try:
        told = msgspec.json.decode(content, type=_Status)
    except DECODE_ERRORS:
        told = _Status()
    return KubernetesError(status, told.message or told.reason or f"status {status}")


async def read_object(api: KubernetesApi, path: str, kind: type[_Body]) -> _Body:
    """Read an object. Raises KubernetesError, also for an answer of another form."""
    return decode_answer(await api.call("GET", path), kind)


def decode_answer(content: bytes, kind: type[_Body]) -> _Body:
    """Decode an answer. Raises KubernetesError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except DECODE_ERRORS as error:
        raise KubernetesError(0, f"unexpected answer: {error}") from None

"""One request to an API server, and how it can fail.  `client` has the real one."""

from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from select_service.errors import PortableError
from select_service.unreadable_json import UNREADABLE

ANSWER_BYTES_MAX = 64 << 20
REQUEST_TIMEOUT_S = 4.0
"""Shorter than what is left of a lease when a leader may still write: see `lease`."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"

FORBIDDEN, NOT_FOUND, CONFLICT, INVALID, TOO_MANY = 403, 404, 409, 422, 429


class KubeError(PortableError):
    """status: of HTTP; 0: there was no complete answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """May the same request succeed at the next tick, with nobody doing anything?"""
        return self.status in (0, CONFLICT, TOO_MANY) or self.status >= 500


class Api(Protocol):
    """Requests of one account to one cluster."""

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        """The body of a 2xx answer.  path: with its query.  Raises KubeError."""
        ...

    async def namespace(self) -> str:
        """Where the account lives.  Raises ConnectorError."""
        ...

    async def close(self) -> None:
        """Connections are closed; the next call opens them again."""
        ...


class _Status(Struct):
    message: str = ""
    reason: str = ""


_Body = TypeVar("_Body")


def error_of(status: int, content: bytes) -> KubeError:
    """An answer that is not 2xx."""
    try:
        told = msgspec.json.decode(content, type=_Status)
    except UNREADABLE:
        told = _Status()
    return KubeError(status, told.message or told.reason or f"status {status}")


async def read(api: Api, path: str, kind: type[_Body]) -> _Body:
    """Raises KubeError, for what is no such object as well."""
    return decoded(await api.call("GET", path), kind)


def decoded(content: bytes, kind: type[_Body]) -> _Body:
    """Raises KubeError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise KubeError(0, f"not what was expected: {error}") from None

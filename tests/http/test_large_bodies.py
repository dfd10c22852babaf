"""Tests that a large body is decoded in a turn of the event loop and served in the next."""

from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from select_service.base.errors import InvalidBody
from select_service.http.body_codec import LONG_BODY_BYTES, read_body
from select_service.http.lenient_decode import BodySchema
from select_service.schemas.selection import SelectRequest

FORM = BodySchema(SelectRequest)


def body(n_bytes: int, **fields: Any) -> bytes:
    given = msgspec.json.encode({"token_ids": [1, 2, 3], **fields})
    return given + b" " * (n_bytes - len(given))


def turns_of(sent: bytes) -> int:
    """Return the number of turns for a body. Raises the errors of reading the body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    headers = [(b"content-type", b"application/json")]
    reading = read_body(Request({"type": "http", "headers": headers}, receive), FORM)
    return 1 + sum(1 for _ in reading.__await__())


@pytest.mark.parametrize("fields", [{}, {"unknown": 1}])
def test_a_large_body_takes_two_turns_and_any_other_one(fields: dict[str, Any]) -> None:
    assert turns_of(body(LONG_BODY_BYTES, **fields)) == 1
    assert turns_of(body(LONG_BODY_BYTES + 1, **fields)) == 2


def test_faults_of_a_large_body_are_reported_at_once() -> None:
    with pytest.raises(InvalidBody):
        turns_of(body(LONG_BODY_BYTES + 1, token_ids="x"))

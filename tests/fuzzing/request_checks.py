"""Check of requests: the compiled reader against the ordinary path."""

from tests.fastpath import reading
from tests.fastpath.corpus import load
from tests.fastpath.requests import USUAL


def check_requests(data: bytes) -> None:
    """Require that the compiled reader agrees with the ordinary path if the reader accepts."""
    reading.agrees(data)


def request_seeds() -> list[bytes]:
    return [*load(), *USUAL]

"""Check of requests: the compiled reader beside the ordinary path."""

from tests.fastpath import reading
from tests.fastpath.corpus import load
from tests.fastpath.requests import USUAL


def check_requests(data: bytes) -> None:
    """What the compiled reader reads, the ordinary path must read in the same way."""
    reading.agrees(data)


def request_seeds() -> list[bytes]:
    return [*load(), *USUAL]

"""How a client asks for a worker when it may be refused.

    budget = RetryBudget()  # one for the whole process
    with httpx.Client(base_url="http://selector:8092") as http:
        selection = ask(http, "/select_and_reserve", body, Patience(20.0, budget))

A refusal that will pass (all workers busy, the tier is shed, the queue was full or took too long)
is a 503 with `Retry-After`, and nothing was booked: the same request may be sent again.  Nothing
else is retried here: a 4xx will be the same the next time, and after a broken connection nobody
knows what was booked (`GET /reservations` tells).

Four rules keep clients from making an overload worse:

1. Never come again before `Retry-After`.
2. Spread out: on top of it wait a random part of a window that doubles with every try ("full
   jitter").
3. A budget over all requests of the process: retries are a small part of what is sent, so that a
   long overload does not multiply the load.
4. A deadline.  A wait that would end after it is not begun, and the service is told by `timeout_ms`
   how long an answer is of use.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

WINDOW_S_MIN = 0.1
WINDOW_S_MAX = 60.0
TIMEOUT_MS_MAX = 3_600_000
"""What the service takes."""
RETRIES_PER_REQUEST = 0.1
RETRIES_SAVED_MAX = 10.0


class RefusedError(Exception):
    """The last answer, when there will be no other: a 4xx, or no more patience."""

    def __init__(self, answer: httpx.Response, tries: int) -> None:
        super().__init__(f"{answer.status_code} after {tries} tries: {answer.text[:300]}")
        self.answer = answer
        self.tries = tries


@dataclass
class RetryBudget:
    """One per process.  Every request earns a part of a retry; savings have a bound."""

    saved: float = RETRIES_SAVED_MAX

    def earn(self) -> None:
        self.saved = min(RETRIES_SAVED_MAX, self.saved + RETRIES_PER_REQUEST)

    def spend(self) -> bool:
        """Take one retry; False when none is left."""
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True


@dataclass
class Patience:
    """How long one request may take in all, and what its retries are taken from."""

    deadline_s: float
    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    """Uniform in [0, 1)."""


def ask(http: httpx.Client, path: str, body: dict[str, Any], patience: Patience) -> dict[str, Any]:
    """The selection.  Raises RefusedError, httpx.HTTPError."""
    end = patience.clock() + patience.deadline_s
    patience.budget.earn()
    tries = 0
    while True:
        left_s = max(0.0, end - patience.clock())
        told = body | {"timeout_ms": min(TIMEOUT_MS_MAX, int(1000 * left_s))}
        answer = http.post(path, json=told, timeout=left_s + 1.0)
        tries += 1
        if answer.is_success:
            selection: dict[str, Any] = answer.json()
            return selection
        wait_s = wait_before_retry(answer, tries, patience.chance())
        if wait_s is None or patience.clock() + wait_s >= end or not patience.budget.spend():
            raise RefusedError(answer, tries)
        patience.sleep(wait_s)


def wait_before_retry(answer: httpx.Response, tries: int, chance: float) -> float | None:
    """Seconds; None when the refusal will not pass by itself.

    chance: uniform in [0, 1)
    """
    after = answer.headers.get("retry-after", "")
    if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or not after.isdecimal():
        return None
    window_s = min(WINDOW_S_MAX, WINDOW_S_MIN * 2.0 ** min(tries, 32))
    return float(after) + chance * window_s

"""Book a worker with retries that do not make an overload worse.

    budget = RetryBudget()  # one for the whole process
    with httpx.Client(base_url="http://selector:8092") as http:
        selection = ask(http, "/select_and_reserve", body, Patience(20.0, budget))

A temporary refusal (all workers busy, tier shed, queue full or timed out, quota used up) is a 503
or 429 with `Retry-After`. Nothing was booked, so the same request may be sent again. Other answers
are not retried: another 4xx stays the same, and after a broken connection the booking is unknown
(`GET /reservations` lists it).

Four rules:

1. Wait at least `Retry-After`.
2. Add a random part of a window that doubles with every try ("full jitter"), so that clients that
   were refused together do not return together.
3. Limit retries by a budget over all requests of the process, so that a long overload does not
   multiply the load.
4. Keep a deadline: do not begin a wait that would end after it, and send the remaining time as
   `timeout_ms`.
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
"""Largest `timeout_ms` that the service accepts."""
RETRIES_PER_REQUEST = 0.1
RETRIES_SAVED_MAX = 10.0
TEMPORARY = {httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE}


class RefusedError(Exception):
    """Final refusal: no temporary one, or no time or budget for another try. `answer` is the last
    response.
    """

    def __init__(self, answer: httpx.Response, tries: int) -> None:
        super().__init__(f"{answer.status_code} after {tries} tries: {answer.text[:300]}")
        self.answer = answer
        self.tries = tries


@dataclass
class RetryBudget:
    """Budget of the process: every request earns a part of a retry, up to a limit."""

    saved: float = RETRIES_SAVED_MAX

    def add_call(self) -> None:
        self.saved = min(RETRIES_SAVED_MAX, self.saved + RETRIES_PER_REQUEST)

    def take_repeat(self) -> bool:
        """Take one retry; return False if none is left."""
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True


@dataclass
class Patience:
    """Time limit of one request and the budget of its retries."""

    deadline_s: float
    budget: RetryBudget
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    """Random number, uniform in [0, 1)."""


def ask(http: httpx.Client, path: str, body: dict[str, Any], patience: Patience) -> dict[str, Any]:
    """Return the selection. Raises RefusedError, httpx.HTTPError."""
    end = patience.clock() + patience.deadline_s
    patience.budget.add_call()
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
        if wait_s is None or patience.clock() + wait_s >= end or not patience.budget.take_repeat():
            raise RefusedError(answer, tries)
        patience.sleep(wait_s)


def wait_before_retry(answer: httpx.Response, tries: int, chance: float) -> float | None:
    """Return the seconds to wait, or None for a refusal that is not temporary.

    chance: uniform in [0, 1)
    """
    after = answer.headers.get("retry-after", "")
    if answer.status_code not in TEMPORARY or not after.isdecimal():
        return None
    window_s = min(WINDOW_S_MAX, WINDOW_S_MIN * 2.0 ** min(tries, 32))
    return float(after) + chance * window_s

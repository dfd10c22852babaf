"""Calls of a scenario that wait in the queue of the service while the scenario goes on."""

import threading
from typing import Any, Self

from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.service_process import Answer, ServiceClient


class BackgroundCalls:
    """Blocking calls by name, each in a separate thread and on a separate connection."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self._threads: dict[str, threading.Thread] = {}
        self._answers: dict[str, Answer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        assert error is not None or not self._threads, "calls that were never joined"

    def begin(self, name: str, call: tuple[Any, ...]) -> None:
        """Send a call; return when the request waits in the queue."""
        waiting = self._service.waiting_requests() + 1
        thread = threading.Thread(target=self._make, args=(name, call), daemon=True)
        self._threads[name] = thread
        thread.start()
        eventually(lambda: name in self._answers or self._service.waiting_requests() >= waiting)
        assert name not in self._answers, f"{name} does not wait: {self._answers[name]}"

    def waits(self, name: str) -> bool:
        return self._threads[name].is_alive()

    def join(self, name: str) -> Answer:
        self._threads.pop(name).join(PATIENCE_S)
        return self._answers[name]

    def _make(self, name: str, call: tuple[Any, ...]) -> None:
        self._answers[name] = self._service.call_alone(*call)

"""Thread pool for blocking calls that shutdown does not wait for: a file may block for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from time import monotonic
from typing import Any, ParamSpec, TypeVar

JOIN_S = 1.0
"""Time limit of `shutdown` for all running calls, in seconds."""

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """Executor that starts all its threads at creation, as daemon threads.

    Derives from ThreadPoolExecutor because event loops accept no other type; the base class starts
    no threads.
    """

    def __init__(self, count: int, name: str) -> None:
        """Start the threads.  Raises RuntimeError when the machine has no threads left."""
        super().__init__(count, thread_name_prefix=name)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._is_closed = False
        self._daemons: list[threading.Thread] = []
        try:
            for number in range(count):
                thread = threading.Thread(
                    target=self._run_calls, name=f"{name}_{number}", daemon=True
                )
                thread.start()
                self._daemons.append(thread)
        except RuntimeError:
            # Some threads have started: they must end, since the caller gets no executor.
            self.shutdown(wait=False)
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call; see Executor.  Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        # A call queued after the end markers would never run: `submit` and `shutdown` exclude
        # each other.
        with self._closing:
            if self._is_closed:
                raise RuntimeError("the threads have ended")
            self._calls.put(lambda: _run_call(future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the queued calls, waiting for at most JOIN_S.

        cancel_futures: True discards calls that have not started
        """
        with self._closing:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            while cancel_futures and not self._calls.empty():
                self._calls.get()
            for _ in self._daemons:
                self._calls.put(None)
        until = monotonic() + JOIN_S
        for thread in self._daemons if wait else ():
            thread.join(max(0.0, until - monotonic()))

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # frees its arguments before the next call arrives


def _run_call(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)

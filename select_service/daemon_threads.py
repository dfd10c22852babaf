"""Threads for what blocks, which no end of the process waits for: a file may block for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from time import monotonic
from typing import Any, ParamSpec, TypeVar

JOIN_S = 1.0
"""How long `shutdown` waits for calls that are under way, all together."""

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """An executor whose threads begin with it, and never again.

    It is a ThreadPoolExecutor because event loops take no other; none of its threads are used.
    """

    def __init__(self, count: int, name: str) -> None:
        """Raises RuntimeError where the machine has no threads left."""
        super().__init__(count, thread_name_prefix=name)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._is_closed = False
        self._daemons: list[threading.Thread] = []
        try:
            for number in range(count):
                thread = threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
                thread.start()
                self._daemons.append(thread)
        except RuntimeError:
            self.shutdown(wait=False)
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See Executor.  Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._closing:
            if self._is_closed:
                raise RuntimeError("the threads have ended")
            self._calls.put(lambda: _call(future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end after what was submitted, and wait for JOIN_S at most.

        cancel_futures: what has not begun is not done
        """
        with self._closing:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            if cancel_futures:
                self._drop_calls()
            for _ in self._daemons:
                self._calls.put(None)
        until = monotonic() + JOIN_S
        for thread in self._daemons if wait else ():
            thread.join(max(0.0, until - monotonic()))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it holds is not kept until the next one

    def _drop_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get()


def _call(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)

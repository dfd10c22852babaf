"""Event loop in a thread, for programs without an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")


class LoopThread:
    """Runs coroutines for other threads. The thread ends with `close` or with the process."""

    def __init__(self, kept: object) -> None:
        """kept: object of the event loop, referenced by the thread

        A forked process has no such thread but shares sockets and other system resources with its
        parent. Nothing may close them there, not even the destruction of objects at the end of the
        process. References of a thread that does not exist are never released, so `kept` is a
        variable of the thread.
        """
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=_run_loop, args=(started, kept), name="select-service-client", daemon=True
        )
        self._thread.start()
        self._loop, self._end = started.result()
        self._lock = threading.Lock()
        self._is_closed = False

    def call(
        self, function: Callable[P, Coroutine[Any, Any, A]], *args: P.args, **kwargs: P.kwargs
    ) -> A:
        """Return the result of a coroutine, or raise its exception.

        Raises RuntimeError after `close`, and on the loop's own thread, which would wait for
        itself. Raises CancelledError if the thread is closed meanwhile.
        """
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "a Selector cannot be called on its own event loop, for example from `tokenize`: "
                "use an AsyncSelector there"
            )
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the Selector is closed: make another one")
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        return future.result()

    def close(self) -> None:
        """End the event loop, its tasks and the thread."""
        with (
            self._lock
        ):  # a call that was accepted before is cancelled, never left without a result
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


def _run_loop(
    started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]", kept: object
) -> None:
    async def until_the_end() -> None:
        end = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), end))
        await end.wait()

    asyncio.run(until_the_end())

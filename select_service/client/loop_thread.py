"""An event loop on a thread of its own, for programs that have none."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")


class LoopThread:
    """Runs coroutines for other threads.  The thread ends with `close`, or with the process."""

    def __init__(self, kept: object) -> None:
        """kept: what lives on the loop.

        A process that is forked has no such thread, but what is registered with the system, as
        connections are, it shares with its parent.  Nothing may close it there: not even the end of
        the process, which takes objects apart.  References of a thread that is not there are never
        given back, so `kept` is a variable of the thread.
        """
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=_run, args=(started, kept), name="select-service-client", daemon=True
        )
        self._thread.start()
        self._loop, self._end = started.result()
        self._lock = threading.Lock()
        self._is_closed = False

    def call(
        self, function: Callable[P, Coroutine[Any, Any, A]], *args: P.args, **kwargs: P.kwargs
    ) -> A:
        """Return what the coroutine returns, or raise what it raises.

        Raises RuntimeError when the thread was closed, and on the thread itself, which would wait
        for itself.  Raises CancelledError when it is closed meanwhile.
        """
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "a Selector cannot be called on its own event loop, as by what it calls back: "
                "use an AsyncSelector there"
            )
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the Selector is closed: make another one")
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        return future.result()

    def close(self) -> None:
        """End the loop with all that runs on it, and the thread."""
        with self._lock:  # whoever was let in before is cancelled, and left without an answer never
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


def _run(started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]", kept: object) -> None:
    async def until_the_end() -> None:
        end = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), end))
        await end.wait()

    asyncio.run(until_the_end())

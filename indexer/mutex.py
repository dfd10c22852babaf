"""A lock that Python and compiled code take alike.

Two locks meet here, the mutex and the interpreter lock, and one rule keeps them apart:

    Nobody waits for a mutex while holding the interpreter lock.

Whoever has the mutex may therefore wait for the interpreter lock, which those who hold it give up
sooner or later, and no circle can close.  In particular:

* Python takes the mutex as a context manager, which tries with the interpreter lock, and waits
  without it.  What is done under it may be any bounded step of bytecode: for rare things, because
  such a step can wait for the interpreter lock while others wait for the mutex.
* A kernel takes the mutex itself (`enter`, `leave`).  It tries; when the mutex is taken, it lets
  the interpreter lock go if it has it, waits, does its work without it, and takes the interpreter
  lock back after the mutex is free again.  So no bytecode runs under the mutex, and whoever waits
  for a kernel that has it waits for some microseconds of work.
* A kernel that never has the interpreter lock may wait at once (`acquire`, `release`).

Of several mutexes that of a thread comes before those that threads share, and nobody takes one of
those while holding another.  A kernel gives back what it took before it returns, unless it says
otherwise.  Nobody raises in between.

No fairness: who gives it back may have it again at once.  A step under it is short.
"""

import ctypes
import sys
from types import TracebackType

import numpy as np

from indexer.mutex_kernels import lock, try_lock, unlock

_WORDS = 16
"""128 bytes: no system needs more than 64 for a mutex, and none needs 128 for its attributes."""
_ERRORCHECK = 1 if sys.platform == "darwin" else 2
"""PTHREAD_MUTEX_ERRORCHECK: taking it twice is an error, not the end of the thread."""


class Mutex:
    """Where it lies stays the same; it goes with the object, which kernels do not keep alive."""

    __slots__ = ("_words", "address")

    def __init__(self) -> None:
        self._words = np.zeros(_WORDS, np.int64)
        self.address = self._words.ctypes.data
        """For kernels (`mutex_kernels`)."""
        library, attributes = ctypes.CDLL(None), (ctypes.c_int64 * _WORDS)()
        library.pthread_mutexattr_init(attributes)
        library.pthread_mutexattr_settype(attributes, _ERRORCHECK)
        library.pthread_mutex_init(ctypes.c_void_p(self.address), attributes)
        library.pthread_mutexattr_destroy(attributes)

    def __enter__(self) -> None:
        """Raises RuntimeError when this thread has it already."""
        if try_lock(self.address):
            self._wait()

    def _wait(self) -> None:
        if lock(self.address):
            raise RuntimeError("the thread has the mutex already")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raises RuntimeError when this thread does not have it."""
        self.release()

    def release(self) -> None:
        """Give back what a kernel has taken and left to us.  Raises as `__exit__`."""
        if unlock(self.address):
            raise RuntimeError("the thread does not have the mutex")

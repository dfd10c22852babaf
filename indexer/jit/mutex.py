"""Mutex shared by Python and compiled code.

Two locks interact here, the mutex and the interpreter lock, and one rule prevents deadlock:

    No thread waits for a mutex while holding the interpreter lock.

A thread that has the mutex may therefore wait for the interpreter lock: holders release that lock
sooner or later, and no cycle can form.  In particular:

* Python takes the mutex as a context manager: a first attempt keeps the interpreter lock, waiting
  releases it.  The block may run any bounded step of bytecode.  Use it for rare steps only: such a
  step can wait for the interpreter lock while other threads wait for the mutex.
* A kernel takes the mutex itself (`lock_mutex`, `unlock_mutex`).  If the mutex is taken, the kernel
releases
  the interpreter lock (if held), waits, works without it and takes the interpreter lock again
  after the mutex is free.  So no bytecode runs under the mutex, and waiting for a kernel takes
  microseconds.

Lock order: the mutex of a thread comes before shared mutexes, and a thread takes at most one
shared mutex at a time.  A kernel releases its mutexes before returning, unless the docstring
differs.  No exception is raised while a kernel holds a mutex.

There is no fairness: a thread that releases the mutex may get it again at once.  Keep steps short.
"""

import ctypes
import sys
from types import TracebackType

import numpy as np

from indexer.jit.mutex_kernels import lock, try_lock, unlock

_WORDS = 16
"""Size of the buffer: 128 bytes, where systems need at most 64 for a mutex, and less than 128 for
its attributes.
"""
_ERRORCHECK = 1 if sys.platform == "darwin" else 2
"""PTHREAD_MUTEX_ERRORCHECK: locking twice in one thread is an error instead of a deadlock."""


class Mutex:
    """Mutex at a fixed address, valid as long as the object lives; kernels do not keep it alive."""

    __slots__ = ("_words", "address")

    def __init__(self) -> None:
        self._words = np.zeros(_WORDS, np.int64)
        self.address = self._words.ctypes.data
        """Address of the pthread mutex, for kernels (`mutex_kernels`)."""
        library, attributes = ctypes.CDLL(None), (ctypes.c_int64 * _WORDS)()
        library.pthread_mutexattr_init(attributes)
        library.pthread_mutexattr_settype(attributes, _ERRORCHECK)
        library.pthread_mutex_init(ctypes.c_void_p(self.address), attributes)
        # The mutex has its own copy of the type.
        library.pthread_mutexattr_destroy(attributes)

    def __enter__(self) -> None:
        """Lock the mutex.  Raises RuntimeError if this thread holds it already."""
        # The uncontended case keeps the interpreter lock: releasing and retaking that lock costs
        # more.
        if try_lock(self.address):
            self._lock_waiting()

    def _lock_waiting(self) -> None:
        if lock(self.address):
            raise RuntimeError("this thread holds the mutex already")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Unlock the mutex.  Raises RuntimeError if this thread does not hold it."""
        self.release()

    def release(self) -> None:
        """Unlock a mutex that a kernel took and passed on.  Raises as `__exit__`."""
        if unlock(self.address):
            raise RuntimeError("this thread does not hold the mutex")

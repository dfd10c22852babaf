"""The garbage collector, kept from stopping the service.

A collection stops every thread.  CPython 3.11 to 3.13 collect by generations, and the oldest one,
looked at when a quarter has been added to it, is everything that lives long: 137,000 objects of the
interpreter, the compiler and the service, some 75 ms of CPU, in the middle of a request.  (3.14
looks at it in slices.)  What exists once the service stands stays as long as the process, so it is
frozen: no collection looks at it again.  It still goes when nothing refers to it.

A large fleet comes later, some 40 objects a rank.  So what a long collection has left, of which it
has just found that nothing is garbage, is frozen too.  Cycles in what is frozen, such as those of
open connections, are not freed when they end; that stays a small part of the memory because each
freezing needs a thirty-second more than all before it.

What comes and goes in great numbers must not be looked at either: reservations are structs without
`gc`.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

THRESHOLDS = (700, 10, 2)
"""New objects until a collection, and collections until one of the next generation: so a full one
has some 20,000 objects to look at that it has not seen before."""
LONG_S = 0.003
"""CPU of a collection that shall not be repeated."""
GROWTH = 32
"""A freezing takes at least a part in so many of what was frozen before."""


@contextmanager
def no_collections() -> Iterator[None]:
    """While much is made that stays, as at an import, looking for garbage is lost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Freezing:
    """Freezes what exists now, and later what long collections leave."""

    def __init__(self) -> None:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self.frozen = gc.get_freeze_count()
        self._begun = 0.0
        gc.callbacks.append(self.note)

    def note(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins or ends, on whatever thread: one at a time."""
        if phase == "start":
            self._begun = thread_time()
        elif info["generation"] == 2 and thread_time() - self._begun > LONG_S:
            self._freeze()

    def _freeze(self) -> None:
        left = len(gc.get_objects(generation=2))
        if left * GROWTH >= self.frozen:
            gc.freeze()
            self.frozen += left

    def end(self) -> None:
        """For tests."""
        gc.callbacks.remove(self.note)
        gc.unfreeze()

"""The garbage collector, kept from stopping the service.

A collection stops every thread.  CPython 3.11 to 3.13 collect by generations, and the oldest one is
everything that lives long: 65,000 objects of the interpreter and the service and some 55 a rank,
half a microsecond each, in the middle of a request.  (3.14 looks at it in slices.)  So nothing that
stays is looked at twice:

* What exists once the service stands stays as long as the process, and is frozen: no collection
  looks at it again.  It still goes when nothing refers to it.
* Everything younger is looked at when there are some 3,000 objects of it, 1 to 2 ms of CPU.  What
  such a collection leaves, if it is more than a little, is frozen too.
* What comes and goes in great numbers is not looked at at all: reservations are rows in arrays.

What is frozen and becomes a cycle that nothing refers to would never be freed.  So what lives for
some time leaves none: requests, closed connections and deleted workers with their listeners go by
reference count alone (tests/process/test_garbage.py).  The cycles that there are, such as those of
a failed connection to an engine, are short-lived: collections find them, and a freezing, which
needs a thousand new objects that live on, keeps no more than those of its moment.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (700, 3, 0)
"""New objects until a collection, and collections until one of the next generation: so a full one
has some 3,000 objects to look at that it has not seen before."""
LEFT_MAX = 1000
"""Objects that full collections may look at again and again."""
OLDEST = 2
"""The generation."""


@contextmanager
def no_collections() -> Iterator[None]:
    """While much is made that stays, as at an import, looking for garbage is lost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Freezing:
    """Freezes what exists now, and later what full collections leave."""

    def __init__(self) -> None:
        gc.freeze()
        gc.collect()  # of nothing: the interpreter judges by the last one when the next is due
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.note)

    def note(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins or ends, on whatever thread: one at a time."""
        is_full = phase == "stop" and info["generation"] == OLDEST
        if is_full and len(gc.get_objects(generation=OLDEST)) > LEFT_MAX:
            gc.freeze()

    def end(self) -> None:
        """For tests."""
        gc.callbacks.remove(self.note)
        gc.unfreeze()

"""Garbage collector settings that keep collections from stopping the service.

A collection stops every thread.  CPython 3.11 to 3.13 collect by generations, and the oldest one
contains all long-lived objects: 65,000 objects of the interpreter and the service and some 55 per
rank, half a microsecond each, in the middle of a request.  (3.14 collects incrementally.)  The
settings therefore ensure that no long-lived object is examined twice:

* Objects that exist after start-up live as long as the process and are frozen: no collection
  examines them again.  Reference counting still frees them.
* Younger objects are examined once about 3,000 of them exist, 1 to 2 ms of CPU.  The survivors of
  such a collection are frozen too, unless they are few.
* Objects that come and go in great numbers are not tracked at all: reservations are rows in arrays.

A frozen object in an unreachable cycle would never be freed.  Objects with a long life therefore
leave no cycles: requests, closed connections and deleted workers with their listeners are freed by
reference counting alone (tests/process/test_garbage.py).  Existing cycles, such as those of a
failed connection to an engine, are short-lived: collections find them, and a freeze, which needs
a thousand new surviving objects, keeps only the cycles of that moment.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (700, 3, 0)
"""Thresholds of the three generations.

A full collection then has about 3,000 new objects to examine.
"""
LEFT_MAX = 1000
"""Number of surviving objects that full collections may examine repeatedly."""
OLDEST = 2
"""Number of the oldest generation."""


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable collections inside the context, for imports and other creation of permanent
    objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class GcFreezer:
    """Freezer of long-lived objects: those that exist now, and later the survivors of full
    collections.
    """

    def __init__(self) -> None:
        gc.freeze()
        gc.collect()  # CPython schedules the next full one by the last one
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Freeze survivors at the end of a full collection.

        Called by the collector on any thread.
        """
        # Only after full collections: younger survivors may still die.
        is_full = phase == "stop" and info["generation"] == OLDEST
        if is_full and len(gc.get_objects(generation=OLDEST)) > LEFT_MAX:
            gc.freeze()

    def unfreeze(self) -> None:
        """Undo the freezing, for tests."""
        gc.callbacks.remove(self.on_collection)
        gc.unfreeze()

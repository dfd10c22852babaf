"""The garbage collector, kept from stopping the service.

A collection stops every thread.  CPython 3.11 to 3.13 collect by generations, and the oldest one,
looked at when a quarter has been added to it, is everything that lives long: 137,000 objects of the
interpreter, the compiler and the service, some 75 ms of CPU, in the middle of a request.  (3.14
looks at it in slices.)  What exists once the service stands stays as long as the process, so it is
frozen: no collection looks at it again.  Cycles in it are never freed, which is why that is done
once and not again and again: later ones belong to connections and workers that go.

What comes later in great numbers must not be looked at either: reservations are structs without
`gc`, and a worker has few objects that are.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (700, 10, 10)
"""Those of 3.11 and 3.12, for every version: a young collection looks at 7,700 objects at most."""


@contextmanager
def no_collections() -> Iterator[None]:
    """While much is made that stays, as at an import, looking for garbage is lost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze() -> None:
    """All that exists stays as long as the process."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)

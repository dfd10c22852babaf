"""What the demo is busy with: a moving line on a terminal, plain lines with the time anywhere else.

A file or a pipe gets one line when a stage begins, and while it lasts one now and then that tells
how far it is.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

PLAIN_EVERY_S = 5.0


class Stages:
    """The stages of one run; times are seconds since it began."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()

    @contextmanager
    def stage(self, what: str) -> Iterator[Callable[[str], None]]:
        """While the block runs, it is busy with `what`; it may tell how far it is, as a text."""
        if self._console.is_terminal:
            with self._console.status(f"{what} ...") as status:
                yield lambda detail: status.update(f"{what}: {escape(detail)} ...")
            return
        self._plain(f"{what} ...")
        told_at = self._clock()

        def now_and_then(detail: str) -> None:
            nonlocal told_at
            if self._clock() - told_at >= PLAIN_EVERY_S:
                told_at = self._clock()
                self._plain(f"{what}: {detail}")

        yield now_and_then

    def _plain(self, text: str) -> None:
        elapsed_s = self._clock() - self._began
        self._console.print(f"{elapsed_s:7.1f} s  {text}", markup=False, soft_wrap=True)

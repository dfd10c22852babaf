"""Progress display of the demo: a status line on a terminal, timestamped lines elsewhere.

A file or a pipe gets one line at the begin of a stage, and one line now and then with the progress.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

PLAIN_EVERY_S = 5.0


class ProgressDisplay:
    """Stages of a run; times are seconds since its begin."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()

    @contextmanager
    def show_stage(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show the stage `what` during the block; the yielded function shows a detail."""
        if self._console.is_terminal:
            with self._console.status(f"{what} ...") as status:
                yield lambda detail: status.update(f"{what}: {escape(detail)} ...")
            return
        self._print_line(f"{what} ...")
        told_at = self._clock()

        def now_and_then(detail: str) -> None:
            nonlocal told_at
            # A file would otherwise get one line per request.
            if self._clock() - told_at >= PLAIN_EVERY_S:
                told_at = self._clock()
                self._print_line(f"{what}: {detail}")

        yield now_and_then

    def _print_line(self, text: str) -> None:
        elapsed_s = self._clock() - self._began
        self._console.print(f"{elapsed_s:7.1f} s  {text}", markup=False, soft_wrap=True)

"""Progress on the terminal: a bar, or lines where no terminal reads."""

from collections.abc import Callable
from time import monotonic
from typing import Final, TextIO

BAR_CHARS: Final = 24


class ProgressBar:
    """Progress of a number of steps. clock: monotonic seconds"""

    def __init__(self, steps: int, output: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._steps, self._output, self._clock = steps, output, clock
        self._done = 0
        self._started_s = clock()
        self._is_terminal = output.isatty()
        self._width = 0

    def add_step(self, text: str) -> None:
        """Count a step and show what it brought."""
        self._done += 1
        count = f"{self._done}/{self._steps}"
        if not self._is_terminal:
            print(f"{count} {text}", file=self._output, flush=True)
            return
        filled = BAR_CHARS * self._done // max(1, self._steps)
        bar = "#" * filled + "." * (BAR_CHARS - filled)
        line = f"[{bar}] {count} {text}, {self._left_text()}"
        # A shorter line must cover the rest of the one before.
        self._output.write("\r" + line.ljust(self._width))
        self._output.flush()
        self._width = len(line)

    def finish(self) -> None:
        """End the line of the bar."""
        if self._is_terminal and self._done:
            self._output.write("\n")

    def _left_text(self) -> str:
        """Return the time that is left if all steps take as long as those before."""
        each_s = (self._clock() - self._started_s) / self._done
        left_s = round(each_s * max(0, self._steps - self._done))
        return f"{left_s // 60}:{left_s % 60:02} left"

"""Work that is done in steps of bounded cost."""

from collections.abc import Generator
from typing import TypeAlias

from indexer.events.actions import Action

STEP_COST_MAX = 4096
"""What one step does: so many blocks, or fewer events.  About a millisecond."""

Steps: TypeAlias = Generator[int, None, None]
"""Yields what each bit has cost, in blocks or so."""
Work: TypeAlias = Generator[int, None, Action]
"""As `Steps`; what to do about it in the end."""


class Stepping:
    """One piece of work at a time."""

    def __init__(self) -> None:
        self._work: Work | Steps | None = None

    @property
    def is_busy(self) -> bool:
        return self._work is not None

    def run(self, work: Work | Steps) -> Action:
        """Do one step of it, or all when that is less."""
        spent = 0
        try:
            while spent < STEP_COST_MAX:
                spent += next(work)
        except StopIteration as end:
            self._work = None
            action: Action = end.value
            return action
        self._work = work
        return None

    def go_on(self) -> Action:
        """The next step of what is under way."""
        assert self._work is not None
        return self.run(self._work)

    def close(self) -> None:
        """Leave what is under way as it is."""
        if self._work is not None:
            self._work.close()
            self._work = None

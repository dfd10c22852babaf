"""Execution of work in steps of bounded cost."""

from collections.abc import Generator, Iterator
from typing import TypeAlias

from indexer.events.replay_actions import Action
from indexer.index.slot_writer import SlotWriter

STEP_COST_MAX = 4096
"""Cost limit of a step, in blocks (fewer events).  About a millisecond."""

Steps: TypeAlias = Generator[int, None, None]
"""Generator that yields the cost of each part, roughly in blocks."""
Work: TypeAlias = Generator[int, None, Action]
"""Generator as `Steps`; returns the resulting action."""


def run_or_keep(steps: Iterator[int], keeper: SlotWriter) -> Iterator[int]:
    """Run steps that must not end midway, as those of an event.

    If the caller stops early, another stream finishes the steps, since the writer keeps the rest.
    """
    try:
        for cost in steps:  # noqa: UP028 - `yield from` would close it as well
            yield cost
    except GeneratorExit:
        keeper.pending_steps = steps
        raise


class StepRunner:
    """Runner of a single piece of work at a time."""

    def __init__(self) -> None:
        self._work: Work | Steps | None = None
        self.is_busy = False
        """True if `continue_work` has work to continue; an attribute, read several times a turn."""

    def run_step(self, work: Work | Steps) -> Action:
        """Run a step of the work, or all of a smaller work."""
        spent = 0
        try:
            while spent < STEP_COST_MAX:
                spent += next(work)
        except StopIteration as end:
            self._work, self.is_busy = None, False
            action: Action = end.value
            return action
        self._work, self.is_busy = work, True
        return None

    def continue_work(self) -> Action:
        """Run the next step of unfinished work."""
        assert self._work is not None
        return self.run_step(self._work)

    def close(self) -> None:
        """Stop unfinished work."""
        if self._work is not None:
            self._work.close()
            self._work, self.is_busy = None, False

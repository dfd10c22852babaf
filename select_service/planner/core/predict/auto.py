"""Which of several predictors is used: the one that has been right lately."""

from collections.abc import Mapping

from select_service.planner.core.predict.joint import Joint

JUDGED_MIN = 5
"""Points before the first change of mind."""
BETTER = 0.9
"""A change needs a loss at most so much of that of the one in use."""


class Choice:
    """Starts with the first; changes after points, never when asked."""

    def __init__(self, joints: Mapping[str, Joint]) -> None:
        self._joints = joints
        self.name = next(iter(joints))

    def review(self) -> None:
        """Once a point."""
        losses = {
            name: joint.loss
            for name, joint in self._joints.items()
            if joint.loss is not None and joint.judged >= JUDGED_MIN
        }
        current = losses.get(self.name)
        if current is None:
            return
        best = min(losses, key=lambda name: losses[name] or 0.0)
        if (losses[best] or 0.0) < BETTER * current:
            self.name = best

"""Choice among predictors by their recent errors."""

from collections.abc import Mapping

from select_service.planner.core.forecasting.joint_predictor import JointPredictor

JUDGED_POINTS_MIN = 5
"""Number of judged points before the first change of the choice."""
LOSS_RATIO_MAX = 0.9
"""Maximum loss of a better predictor, as part of the current predictor's loss."""


class PredictorChoice:
    """Choice of a predictor: the first at the start, changed only after points."""

    def __init__(self, joints: Mapping[str, JointPredictor]) -> None:
        self._joints = joints
        self.name = next(iter(joints))

    def review_choice(self) -> None:
        """Review the choice; called once a point."""
        losses = {
            name: joint.mean_loss
            for name, joint in self._joints.items()
            if joint.mean_loss is not None and joint.judged_points >= JUDGED_POINTS_MIN
        }
        current = losses.get(self.name)
        if current is None:
            return
        best = min(losses, key=lambda name: losses[name] or 0.0)
        # The margin avoids switches between predictors of equal quality, which would make plans
        # jump.
        if (losses[best] or 0.0) < LOSS_RATIO_MAX * current:
            self.name = best

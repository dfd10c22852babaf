"""Tests of Prophet's fits and of predictions between two fits; the fit here knows the future."""

from collections.abc import Sequence

import pytest

from select_service.planner.core.forecasting.predictor_registry import make_predictors
from select_service.planner.core.forecasting.prophet import REFIT_BESIDE_OTHERS, Prophet
from select_service.planner.core.settings import DeploymentSettings

INTERVAL_S = 60.0


class Knowing:
    """Fit that predicts three more with each step, and counts its calls."""

    def __init__(self) -> None:
        self.fits = 0

    def __call__(
        self, values: Sequence[float], interval_s: float, steps: Sequence[float]
    ) -> list[float] | None:
        assert interval_s == INTERVAL_S
        self.fits += 1
        return [values[-1] + 3.0 * each for each in steps]


@pytest.mark.parametrize(("predictor", "fits"), [("prophet", 60), ("auto", 6)])
def test_one_fit_serves_ten_points_beside_others(predictor: str, fits: int) -> None:
    knowing = Knowing()
    settings = DeploymentSettings(load_predictor=predictor)  # type: ignore[arg-type]
    series = make_predictors(settings, INTERVAL_S, prophet=knowing)["prophet"]()
    for at in range(1, 4 + 60 + 1):
        series.add(3.0 * at)
        if at > 4:
            assert series.predict() == pytest.approx(3.0 * at + 3.0)
    assert knowing.fits == fits


@pytest.mark.parametrize("steps", [1.0, 1.67, 2.0, 7.5, 40.0])
def test_every_step_is_on_the_line_at_any_time(steps: float) -> None:
    prophet = Prophet(Knowing(), 50, INTERVAL_S, REFIT_BESIDE_OTHERS)
    for at in range(25):
        prophet.push(3.0 * at)
        assert prophet.ahead(1.0) == pytest.approx(3.0 * at + 3.0)
        if at % 4 == 0:
            assert prophet.ahead(steps) == pytest.approx(3.0 * at + 3.0 * steps)


def test_a_fit_without_an_answer_is_tried_again_at_the_next_question() -> None:
    answers: list[list[float] | None] = [None, [5.0] * 11]
    prophet = Prophet(
        lambda values, interval_s, steps: answers.pop(0), 50, INTERVAL_S, REFIT_BESIDE_OTHERS
    )
    prophet.push(5.0)
    assert prophet.ahead(1.0) is None
    assert prophet.ahead(1.0) == 5.0

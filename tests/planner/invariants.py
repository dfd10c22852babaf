"""Invariants of the planner's state, which tests check after each step."""

from itertools import pairwise

import numpy as np

from select_service.planner.connectors.virtual_state import NEVER, TICKS_TO_SUPERSEDE, VirtualState
from select_service.planner.core.performance.bucketed_samples import BucketedSamples
from select_service.planner.core.replicas.stabiliser import Stabiliser
from select_service.planner.core.replicas.startups import StartUpTracker
from select_service.planner.core.tick import PlannedDeployment
from select_service.planner.core.tick_input import Role
from select_service.planner.deployment_status import DeploymentStatus
from select_service.planner.thinned_history import ThinnedHistory


def check_status(status: DeploymentStatus) -> None:
    check_history(status._history)
    assert len(status._history) <= status.ticks
    assert all(count <= status.ticks for count in status.by_reason.values())
    for role in Role:
        turned = status.scale_ups[role] + status.scale_downs[role]
        assert status.reversals[role] <= max(0, turned - 1)
    # Sums over many windows are subject to rounding.
    assert all(0.0 <= met.kept <= met.requests * (1 + 1e-9) for met in status.met.values())


def check_history(history: ThinnedHistory) -> None:
    assert 0 <= history._kept <= history._next <= max(history._until, 0) <= history._end
    assert history._end <= len(history._table) <= history._places_max
    assert len(history) <= history._rows_max
    assert np.all(np.diff(history.copy_table()[:, 0]) >= 0.0)


def check_virtual_state(state: VirtualState) -> None:
    assert NEVER <= state.acknowledged <= state.decision.decision_id
    assert 0 <= state.kept_ticks < TICKS_TO_SUPERSEDE
    assert (state.kept_counts is None) == (state.kept_ticks == 0)
    assert state.decision.decision_id > NEVER or not (state.reported or state.adopted)
    for role in Role:
        assert (state.decision.role_count(role) or 0) >= 0


def check_samples(samples: BucketedSamples) -> None:
    """Check that every sample is in its cell, and that no sample is surplus."""
    assert len(samples) == sum(map(len, samples._buckets.values())) <= samples._samples_max
    for cell, bucket in samples._buckets.items():
        assert all(samples._cell_of(sample.x) == cell for sample in bucket)


def check_startups(startups: StartUpTracker) -> None:
    assert startups.startup_s > 0.0
    assert (len(startups._under_way) == 0) == (startups._progress is None)


def check_stabiliser(stabiliser: Stabiliser) -> None:
    """Check that the kept values decrease, and are within the window."""
    times = [at for at, _ in stabiliser._window_values]
    values = [wanted for _, wanted in stabiliser._window_values]
    assert times == sorted(times)
    assert all(a > b for a, b in pairwise(values))
    assert not times or times[-1] - times[0] < stabiliser._settings.down_window


def check_deployment(deployment: PlannedDeployment) -> None:
    for startups in deployment._inventory._startups.values():
        check_startups(startups)
    for stabiliser in deployment._settler._stabilisers.values():
        check_stabiliser(stabiliser)

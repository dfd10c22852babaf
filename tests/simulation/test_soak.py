"""The simulations of this folder with many more seeds; run by scripts/test_slow."""

import pytest

from tests.simulation import test_fitness as fit
from tests.simulation import test_replicas as short

pytestmark = pytest.mark.slow

SEEDS = range(1000, 1400)


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_agree_after_the_network_heals(seed):
    short.test_replicas_agree_after_the_network_heals(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_load_remains_when_all_requests_are_freed(seed):
    short.test_no_load_remains_when_all_requests_are_freed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_agree_although_processes_die_and_start_anew(seed):
    short.test_replicas_agree_although_processes_die_and_start_anew(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_agree_after_one_was_cut_off_and_two_died_however_late_each_link_is_back(seed):
    short.test_replicas_agree_after_one_was_cut_off_and_two_died_however_late_each_link_is_back(
        seed
    )


@pytest.mark.parametrize("seed", range(1000, 1200))
def test_guarantees_hold_under_all_faults(seed):
    fit.test_guarantees_hold_under_all_faults(seed)

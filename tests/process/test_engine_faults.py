"""Tests of a service with fleets of real engines, each with another fault: which ranks leave."""

import urllib.request

import pytest

from tests.builders.in_thread import InThread
from tests.builders.polling import eventually
from tests.builders.served_engines import ServedEngines
from tests.process.engine_fleets import CASES, SIZE, WHOLE, start_fleets

pytestmark = pytest.mark.process

FLAGS = (
    "--health-checks=on",
    "--health-interval-secs=1",
    "--health-confirm-secs=0.2",
    "--health-retries=1",
    "--health-timeout-secs=3",
)
PROMPT = "[{prompt: [11, 12, 13, 14, 15], max_tokens: 8}]"
"""Short prompt, since all engines and the service share one processor."""
LEARNT_AFTER = 6
"""Number of checks after which the right answer and its usual time are learnt."""
STAYS_FOR = 6
"""Number of requests without ejection after which a rank counts as kept."""
SICK_CASES = [name for name, case in CASES.items() if case.causes]
SOUND_CASES = [name for name, case in CASES.items() if not case.causes]
WRONG = {"token_mismatch", "logit_drift"}


@pytest.fixture(scope="module")
def fleets(tmp_path_factory):
    path = tmp_path_factory.mktemp("canaries") / "canaries.yaml"
    path.write_text("".join(f"'{name}': {PROMPT}\n" for name in CASES | WHOLE))
    flags = (*FLAGS, "--canary-config", str(path))
    with ServedEngines() as engines, InThread(*flags) as service:
        fleets = start_fleets(service, engines, CASES | WHOLE)
        for fleet in fleets.values():
            fleet.wait_for_checks(LEARNT_AFTER)
        for fleet in fleets.values():
            fleet.begin()
        yield fleets


@pytest.mark.parametrize("name", [*SICK_CASES, "alone_wrong"])
def test_a_faulty_engine_gets_no_requests(fleets, name):
    fleet = fleets[name]
    eventually(fleet.is_out)
    assert fleet.sick()["cause"] in fleet.case.causes
    if fleet.case.size == SIZE:
        assert fleet.served[fleet.sick_at].worker_id not in fleet.choose_workers(20)


@pytest.mark.parametrize("name", SOUND_CASES)
def test_an_engine_that_rejects_requests_or_deviates_slightly_stays(fleets, name):
    fleet = fleets[name]
    eventually(lambda: fleet.count_new_requests()[fleet.sick_at] >= STAYS_FOR)
    assert not fleet.is_out()


def test_a_positive_health_endpoint_does_not_keep_a_faulty_engine(fleets):
    fleet = fleets["hang"]
    with urllib.request.urlopen(f"{fleet.served[fleet.sick_at].endpoint}/health") as answer:
        assert answer.status == 200
    eventually(fleet.is_out)


def test_the_last_rank_stays_although_it_is_slow(fleets):
    fleet = fleets["alone_slow"]
    eventually(lambda: fleet.sick()["failures"] >= 4)
    assert fleet.sick()["cause"] == "latency_spike"
    assert fleet.choose_workers(1) == {fleet.served[0].worker_id}


def test_a_network_that_carries_nothing_takes_half_out_at_most(fleets):
    fleet = fleets["network"]
    eventually(lambda: sum(fleet.count_new_requests()) >= 3 * SIZE)
    assert fleet.out() <= SIZE // 2


def test_other_weights_on_all_ranks_eject_no_rank(fleets):
    fleet = fleets["update"]
    eventually(lambda: min(fleet.count_new_requests()) >= STAYS_FOR)
    assert fleet.out() == 0


def test_a_wrong_answer_ejects_no_other_rank(fleets):
    for fleet in fleets.values():
        assert not {rank["cause"] for rank in fleet.others()} & WRONG

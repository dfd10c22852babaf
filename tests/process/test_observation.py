"""Tests of GET /planner/observation: the same on every path, and unknown after a start."""

import pytest

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Running
from tests.process.test_service import PATHS

pytestmark = pytest.mark.process

PROMPT = {"model_name": "m", "token_ids": list(range(40))}
COUNTED = {"arrivals": 7, "queued_now": 0, "kv_hit_rate": 0.0}


def observe(running, window_s):
    path = f"/planner/observation?model_name=m&window_s={window_s}"
    return running.call("GET", path).body


def live(running, name):
    """Run a request to the end."""
    running.call("POST", "/select_and_reserve", {**PROMPT, "reservation_id": name})
    for verb in ("prefill_complete", "output_block", "output_block"):
        assert running.call("POST", f"/reservations/{name}/{verb}", {}).status == 200
    assert running.call("DELETE", f"/reservations/{name}").status == 200


@pytest.mark.parametrize("flags", PATHS.values(), ids=PATHS)
def test_a_window_is_complete_once_it_is_covered_and_has_all_requests(flags):
    with Running("--threads", "1", *flags) as running:
        running.call("POST", "/workers", worker_body(1, role="aggregated"))
        first = observe(running, 60)
        assert (first["arrivals"], first["complete"]) == (0, False)
        for n in range(5):
            live(running, f"r{n}")
        for _ in range(2):
            assert running.call("POST", "/select", PROMPT).status == 200
        eventually(lambda: observe(running, 2)["complete"])
        found = observe(running, 3600)
        assert {name: found[name] for name in COUNTED} == COUNTED
        assert not found["complete"]
        sums = {name: sum(found[name]["counts"]) for name in ("isl", "osl", "ttft_s", "itl_s")}
        assert sums == {"isl": 7, "osl": 5, "ttft_s": 5, "itl_s": 10}
        assert (found["osl"]["sum"], len(found["prefill_s"])) == (5 * 2 * 4, 5)
        assert [rank["role"] for rank in found["ranks"]] == ["aggregated"]
        assert running.stop() == 0

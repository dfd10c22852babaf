"""Another policy at run time: loops and the fast path choose by it from the next request on."""

import pytest

from tests.builders import worker_body
from tests.loops.running import OnLoops
from tests.process.running import request

pytestmark = pytest.mark.process

DECODING, PREFILLING = 1, 2
"""A worker that has computed a long prompt and answers, and one that has a short one to compute."""
SHORT = {"model_name": "m", "token_ids": [1, 2, 3, 4, 5]}
POLICIES = {"reference": PREFILLING, "least_work": DECODING}


def busy(service: OnLoops) -> None:
    for worker, tokens in ((DECODING, 400), (PREFILLING, 8)):
        assert service.call("POST", "/workers", worker_body(worker)).status == 201
        asked = {"model_name": "m", "token_ids": list(range(100, 100 + tokens))}
        asked |= {"worker_id": worker, "reservation_id": f"r{worker}"}
        assert service.call("POST", "/reservations", asked).status == 201
    service.call("POST", f"/reservations/r{DECODING}/prefill_complete")


@pytest.mark.parametrize("path", ["/select", "/select_and_reserve"])
def test_the_next_decision_is_that_of_the_new_policy(path: str) -> None:
    with OnLoops("--policy", "reference") as service, service.client() as client:
        busy(service)
        for policy in ("reference", "least_work", "reference", "least_work"):
            changed = {"model_name": "m", "policy": policy}
            assert service.call("PUT", "/policy", changed).status == 200
            handed = service.n_handed
            client.send(request("POST", path, SHORT))
            answer = client.answer()
            assert answer.body["worker_id"] == POLICIES[policy]
            if path == "/select":
                assert service.n_handed == handed
            else:
                name = answer.body["reservation_id"]
                assert service.call("DELETE", f"/reservations/{name}").status == 200
    service.selector.check_invariants()

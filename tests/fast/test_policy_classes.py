"""The header that names a policy class, where requests may wait."""

import pytest

from tests.builders import worker_body
from tests.fast.requests import AIOHTTP, request
from tests.fast.test_equality import post
from tests.fast.two_services import TwoServices

WARNING = b'"warnings":["no policy class or family is called `batch`,'


def named(policy_class: str, path: str) -> bytes:
    headers = (*AIOHTTP, ("x-dynamo-meta-policy-class", policy_class))
    return request(f"POST {path}", headers, {"model_name": "m", "token_ids": [1, 2, 3]})


@pytest.mark.parametrize("path", ["/select", "/select_and_reserve"])
def test_the_fast_path_steps_aside_where_the_header_names_no_class(path: str) -> None:
    with TwoServices("--queue-threshold", "8.0") as two:
        two.say(post("/workers", worker_body(1, max_num_batched_tokens=8192)))
        assert WARNING not in two.say(named("default", path))
        answered = two.answered
        assert answered > 0
        assert WARNING in two.say(named("batch", path))
        assert two.answered == answered


def test_without_a_queue_the_header_costs_nothing() -> None:
    with TwoServices() as two:
        two.say(post("/workers", worker_body(1)))
        assert WARNING not in two.say(named("batch", "/select"))
        assert two.answered == 1

"""Tests of the header that names a policy class, where requests may wait."""

import pytest

from tests.builders import worker_body
from tests.fastpath.prompts import post
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.two_services import TwoServices

WARNING = b'"warnings":["unknown policy class or family `batch`,'


def request_of_class(policy_class: str, path: str) -> bytes:
    headers = (*AIOHTTP, ("x-dynamo-meta-policy-class", policy_class))
    return request(f"POST {path}", headers, {"model_name": "m", "token_ids": [1, 2, 3]})


@pytest.mark.parametrize("path", ["/select", "/select_and_reserve"])
def test_the_fast_path_steps_aside_where_the_header_names_no_class(path):
    with TwoServices("--queue-threshold", "8.0") as two:
        two.send(post("/workers", worker_body(1, max_num_batched_tokens=8192)))
        assert WARNING not in two.send(request_of_class("default", path))
        answered = two.answered
        assert answered > 0
        assert WARNING in two.send(request_of_class("batch", path))
        assert two.answered == answered


def test_without_a_queue_the_header_costs_nothing():
    with TwoServices() as two:
        two.send(post("/workers", worker_body(1)))
        assert WARNING not in two.send(request_of_class("batch", "/select"))
        assert two.answered == 1


CLASSES = """
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: chat, policy_family: chat, cache_bucket: all, prefill_busy_threshold: 100}
  - {name: batch, policy_family: batch, cache_bucket: all, prefill_busy_threshold: 20}
  - {name: others, prefill_busy_threshold: 20, queue_policy: QUEUE_POLICY}
"""


def book(two: TwoServices, name: str, worker_id: int) -> None:
    prompt = {"model_name": "m", "sequence_hashes": [1], "isl_tokens": 50}
    two.send(post("/reservations", {**prompt, "reservation_id": name, "worker_id": worker_id}))


@pytest.mark.parametrize("queue_policy", ["fcfs", "work"])
def test_with_several_classes_while_any_rank_has_room_for_all_of_them(queue_policy, tmp_path):
    document = tmp_path / "classes.yaml"
    document.write_text(CLASSES.replace("QUEUE_POLICY", queue_policy))
    flags = ("--policy-config", str(document))

    def answered(*policy_classes: str) -> int:
        """Return how many requests of these classes the fast path answered."""
        before = two.answered
        for policy_class in policy_classes or ("chat", "batch", "others"):
            two.send(request_of_class(policy_class, "/select"))
        return two.answered - before

    with TwoServices(*flags) as two:
        for worker in (1, 2):
            two.send(post("/workers", worker_body(worker, max_num_batched_tokens=8192)))
        assert answered() == 3
        book(two, "a", 1)  # full for some of the classes
        assert answered() == 3
        book(two, "b", 2)
        assert answered("chat") == 0
        for name in ("a", "b"):
            two.send(request(f"DELETE /reservations/{name}", AIOHTTP))
        assert answered() == 3

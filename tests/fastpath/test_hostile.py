"""Tests that both paths answer alike at the limits of the reader."""

import pytest

from tests.builders import worker_body
from tests.fastpath.hostile import cases
from tests.fastpath.prompts import post, prompt_of
from tests.fastpath.two_services import TwoServices

QUEUE = ("--queue-threshold", "1.0", "--queue-timeout-secs", "0.001")
SIZES = {"total_kv_blocks": 100_000, "max_num_batched_tokens": 8192}


@pytest.mark.parametrize("flags", [(), QUEUE], ids=["plain", "queue"])
def test_both_paths_read_the_same(flags: tuple[str, ...]) -> None:
    """Each case has a separate connection, so that no rest of the case before is read."""
    with TwoServices(*flags) as two:
        for worker in (1, 2):
            body = worker_body(worker, model_name="llama", data_parallel_size=worker, **SIZES)
            two.send(post("/workers", body))
        booked = {"model_name": "llama", "reservation_id": "live", **prompt_of(30, True)}
        two.send(post("/select_and_reserve", booked))
        for name, data in cases():
            try:
                two.send(data)
            except AssertionError as error:
                raise AssertionError(f"{name}: {data[:400]!r}") from error
            two.reconnect()
        loads = [
            list(side.selector.inspection.partition_loads()) for side in (two.fast, two.ordinary)
        ]
        assert loads[0] == loads[1]
        assert two.answered > 100

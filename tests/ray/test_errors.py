"""Tests that an error of the client in a task or an actor reaches the waiting caller unchanged."""

import pytest
import ray

from select_service.client import Refused, Unavailable
from tests.ray.clusters import cluster

pytestmark = pytest.mark.process


@ray.remote
def refused() -> None:
    raise Refused(503, "queue_full", "no room", 2.5, {"waiting": 7})


@ray.remote
def unavailable() -> None:
    raise Unavailable("nobody answers", may_be_done=True)


def test_errors_of_the_client_arrive_with_all_their_fields() -> None:
    with cluster((2,)):
        with pytest.raises(Refused) as raised:
            ray.get(refused.remote())
        cause = raised.value.cause
        assert (cause.status, cause.code, cause.text) == (503, "queue_full", "no room")
        assert (cause.retry_after_s, cause.details) == (2.5, {"waiting": 7})
        with pytest.raises(Unavailable) as lost:
            ray.get(unavailable.remote())
        assert lost.value.cause.may_be_done

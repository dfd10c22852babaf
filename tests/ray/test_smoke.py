"""Test of a selector that Ray runs, and of a program that calls it: the least that must work."""

import asyncio

import pytest

from select_service.client import AsyncSelector

pytestmark = pytest.mark.process


async def one_lease(url, reservations):
    """Return the chosen worker, and the number of reservations during the lease."""
    async with (
        AsyncSelector([url], model_name="m") as selector,
        selector.lease(token_ids=list(range(64))) as lease,
    ):
        lease.first_token()
        return lease.worker_id, reservations(url)


def test_a_selector_is_deployed_found_and_used():
    pytest.importorskip("ray", reason="Ray is not installed here: scripts/test_ray")
    from select_service.ray import deploy, find
    from tests.ray.clusters import FLAGS, cluster, port, register, reservations

    with cluster((2,)):
        urls = deploy(
            1,
            port=port(),
            flags=FLAGS,
            insecure=True,
            environment={"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"},
        )
        assert find() == urls
        register(urls[0], 7)
        assert asyncio.run(one_lease(urls[0], reservations)) == (7, 1)
        assert reservations(urls[0]) == 0

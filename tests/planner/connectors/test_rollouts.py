"""Tests of the budget: the number of pods never exceeds it under failures, restarts and delays."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_requests import JSON
from select_service.planner.connectors.kubernetes_connector import KubernetesConnector
from tests.builders.fake_kubernetes.controller import Controller
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, POD
from tests.builders.fake_kubernetes.store import Refused, Store
from tests.planner.connectors.a_cluster import D, P, Time, deployment

BUDGET = 8


class StoreApi:
    """Store without a server.

    fails: results of the next requests
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fails: list[str] = []

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        fails = self.fails.pop(0) if self.fails else ""
        if fails.isdigit():
            raise KubernetesError(int(fails), "injected")
        try:
            found = self._served(method, path.partition("?"), body, content_type)
        except Refused as refused:
            raise KubernetesError(refused.status, refused.message) from None
        if fails == "answer":
            raise KubernetesError(0, "the answer is lost")
        return msgspec.json.encode(found)

    def _served(
        self, method: str, path: tuple[str, str, str], body: Any, content_type: str
    ) -> dict[str, Any]:
        if path[0].endswith("/pods"):
            app = path[2].rpartition("%3D")[2]
            pods = self.store.list(POD, "default")
            return {"items": [pod for pod in pods if pod["metadata"]["labels"]["app"] == app]}
        *_, name, last = path[0].split("/")
        if last != "scale":
            return self.store.get(DEPLOYMENT, "default", last)
        if method == "PATCH":
            return self.store.patch_scale(DEPLOYMENT, "default", name, body, content_type)
        return self.store.scale(DEPLOYMENT, "default", name)

    async def namespace(self) -> str:
        return "default"

    async def close(self) -> None:
        pass


splits = st.integers(0, BUDGET).flatmap(
    lambda prefill: st.tuples(st.just(prefill), st.integers(0, BUDGET - prefill))
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), splits),
        st.tuples(st.just("tick"), st.sampled_from([1.0, 5.0, 12.0, 40.0])),
        st.tuples(
            st.just("fail"),
            st.lists(st.sampled_from(["", "", "answer", "0", "409", "500", "403"]), max_size=8),
        ),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=30,
)


@given(steps)
def test_a_rollout_never_has_more_pods_than_the_budget(steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        store, time = Store(), Time()
        controller = Controller(store)
        for name in ("prefill", "decode"):
            spec = {"metadata": {"name": name}, "spec": {"replicas": BUDGET // 2}}
            store.create(DEPLOYMENT, "default", spec)
        controller.step(1.0)
        controller.step(60.0)
        api = StoreApi(store)

        async def connector_of() -> KubernetesConnector:
            """Return a new connector that has read its targets, as at a planner's start."""
            api.fails = []
            targets = [deployment(P, "prefill"), deployment(D, "decode")]
            connector = KubernetesConnector(api, targets, clock=time)
            await connector.read()
            return connector

        connector = await connector_of()
        wanted = None
        for verb, given_ in steps:
            if verb == "scale":
                wanted = {P: given_[0], D: given_[1]}
                await connector.scale(wanted)
            elif verb == "fail":
                api.fails = list(given_)
            elif verb == "restart":
                connector = await connector_of()
            else:
                time.now += given_
                controller.step(given_)
                await connector.wait(0)
            assert controller.most_pods <= BUDGET
        api.fails = []
        for _ in range(20):
            time.now += 5.0
            controller.step(5.0)
            await connector.wait(0)
            if wanted is not None:
                await connector.scale(wanted)
            assert controller.most_pods <= BUDGET
        if wanted is not None:
            for role, name in ((P, "prefill"), (D, "decode")):
                found = store.get(DEPLOYMENT, "default", name)
                assert found["spec"]["replicas"] == wanted[role]

    asyncio.run(run())

"""Baselines: the same workload under other policies, in this process on fresh engines.

The engines and their time are those of the run through the service. The core receives the same
calls as the service over HTTP and ZMQ, in the same order, and KV events at once.
"""

from select_service.core.placement.router_config import RouterConfig
from select_service.sim.demo.conversations import ConversationWorkload
from select_service.sim.demo.demo_fleet import FleetShape
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.replay_world import ReplayRouter, ReplayWorld, RunRecord
from select_service.sim.engine.simple_routers import LeastRequestsRouter, RoundRobinRouter


def run_baselines(
    workload: ConversationWorkload, shape: FleetShape, policy: str
) -> dict[str, RunRecord]:
    """Return the results of the baselines by name.  policy: policy of the service"""
    other = "work" if policy == "reference" else "reference"
    scene = CoreScene(shape.hardware, workload.catalog.size, shape.seed)
    routers: dict[str, ReplayRouter] = {
        other: CoreRouter(scene, RouterConfig(policy=other)),
        "round robin": RoundRobinRouter(shape.ranks, shape.seed),
        "least loaded": LeastRequestsRouter(shape.ranks, shape.seed),
    }
    traffic = workload.replay_workload()
    return {
        name: ReplayWorld(traffic, shape.hardware, None).run_open(router, 1.0)
        for name, router in routers.items()
    }

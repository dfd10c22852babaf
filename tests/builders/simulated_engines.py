"""The planner's simulated fleet and its traffic (scripts/bench), for tests."""

from scripts.bench.planner.generated_requests import generate_requests
from scripts.bench.planner.simulated_platform import MODEL, EngineFleetSpec, SimulatedPlatform
from scripts.bench.planner_quality import SPEED, bimodal, fleet_of, heavy_tailed, normal
from select_service.sim.engine.text_streams import BlockNumbers, TextStream

__all__ = [
    "MODEL",
    "SPEED",
    "BlockNumbers",
    "EngineFleetSpec",
    "SimulatedPlatform",
    "TextStream",
    "bimodal",
    "fleet_of",
    "generate_requests",
    "heavy_tailed",
    "normal",
]

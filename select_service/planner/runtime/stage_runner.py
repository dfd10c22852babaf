"""Run of a tick's stages: the core on a thread, plugins between them."""

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

from select_service.planner.core.cluster import ClusterPlanner
from select_service.planner.core.plugin_contracts import PluginContext
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import TickInput
from select_service.planner.core.tick_plan import StageAnswers
from select_service.planner.plugins.plugin_host import PluginHost
from select_service.planner.runtime.deployment_runner import DeploymentRunner

log = logging.getLogger("select_service.planner")

SCALING_S = 5.0
"""Time before a tick's deadline that plugins must leave for the start of its scaling, seconds."""


class DecidedTick(NamedTuple):
    """Tick of all due deployments. inputs: with the answers of plugins"""

    inputs: Mapping[str, TickInput]
    effects: dict[str, TickEffects]


async def run_stages(
    cluster: ClusterPlanner,
    members: Mapping[str, DeploymentRunner],
    inputs: Mapping[str, TickInput],
    by_s: float,
) -> DecidedTick:
    """Decide all deployments together; after an error each alone, without those that fail again.

    by_s: deadline of the tick, by the event loop's clock
    """
    hosts = {name: members[name].sources.plugins for name in inputs}
    tick = cluster.begin_tick(inputs, {name: hosts[name].asked_stages(name) for name in inputs})
    try:
        # A forecast may take seconds, so the core runs on a thread and the API answers meanwhile.
        contexts = await asyncio.to_thread(tick.advance)
        while contexts:
            answers = await _answer_stages(hosts, contexts, by_s - SCALING_S)
            contexts = await asyncio.to_thread(tick.advance, answers)
        return DecidedTick(tick.inputs, await asyncio.to_thread(tick.finish))
    except Exception:
        log.exception("tick failed, deciding each deployment alone")
    effects: dict[str, TickEffects] = {}
    for name, given in tick.inputs.items():
        try:
            effects |= await asyncio.to_thread(cluster.tick, {name: given})
        except Exception as error:
            members[name].record_failure("decision", error)
    return DecidedTick(tick.inputs, effects)


async def _answer_stages(
    hosts: Mapping[str, PluginHost], contexts: Mapping[str, PluginContext], by_s: float
) -> dict[str, StageAnswers]:
    """Return the answers of all plugins, by deployment."""
    given = await asyncio.gather(
        *(hosts[name].answer_stage(name, context, by_s) for name, context in contexts.items())
    )
    return dict(zip(contexts, given, strict=True))

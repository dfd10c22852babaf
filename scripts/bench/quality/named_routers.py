"""Routers by name: a policy, a trial, a rule of another router or a simple router, its options, and
the number of selectors.

    NAME[, OPTION]... [ @ N x MS ms[, OPTION]...]

Options of a core or a trial: `no reports` (callers do not report the end of prefills), `speeds`
(workers declare their speed), `session` (requests name theirs), `option NAME` (of the policy),
`queue POLICY FRAC` (the core's queue is on: a rank has room below FRAC batch budgets). Options of
several selectors: `loss 20` (percent of messages), `sticky` (a session stays with one selector),
`no help`, or parts of it: `no work`, `no progress`, `no share`; a core always sends own work.
"""

from collections.abc import Callable
from typing import NamedTuple, get_args

from scripts.bench.quality.length_rules import LENGTH_USES, LengthRouter
from scripts.bench.quality.peer_rules import PEER_RULES, PeerRouter
from scripts.bench.quality.replicated_selectors import HELP, ReplicaNetwork, ReplicatedRouter
from scripts.bench.quality.work_rule import LEAST_WORK, WORK, WorkRouter, WorkRule
from select_service.core.admission.policy_classes import (
    QueuePolicy,
    QueueRules,
    single_class_profile,
)
from select_service.core.placement.router_config import POLICY_NAMES, POLICY_OPTIONS, RouterConfig
from select_service.sim.engine import simple_routers
from select_service.sim.engine.core_router import CoreRouter, CoreScene, SelectorUsage
from select_service.sim.engine.prefix_tree_router import PrefixTreeRouter
from select_service.sim.engine.replay_world import ReplayRouter, ReplayWorld

BLIND: dict[str, Callable[[CoreScene], ReplayRouter]] = {
    "round robin": lambda scene: simple_routers.RoundRobinRouter(len(scene.fleet), scene.seed),
    "least requests": lambda scene: simple_routers.LeastRequestsRouter(
        len(scene.fleet), scene.seed
    ),
    "least load": lambda scene: simple_routers.LeastLoadRouter(len(scene.fleet), scene.seed),
    "hash": lambda scene: simple_routers.SessionHashRouter(len(scene.fleet), scene.seed),
    "bounded hash": lambda scene: simple_routers.SessionHashRouter(
        len(scene.fleet), scene.seed, 1.25
    ),
    "prefix tree": lambda scene: PrefixTreeRouter(len(scene.fleet), scene.seed, scene.n_blocks),
}

TRIALS: dict[str, WorkRule] = {
    "work": WORK,
    "least work": LEAST_WORK,
    "no memory": WORK._replace(memory=0.0),
    "memory at 4": WORK._replace(memory=4.0),
    "memory learnt": WORK._replace(declared=False),
    "hold": WORK._replace(hold_tokens=8192.0),
    "hold at 2048": WORK._replace(hold_tokens=2048.0),
    "hold in order": WORK._replace(hold_tokens=8192.0, hold_s=0.0),
    "own work x2": WORK._replace(own=2.0),
    "share at 1024": WORK._replace(share=1024.0),
    "no progress": WORK._replace(progress=False),
    "no R/32": WORK._replace(r_max=0.0),
    "no 256 R": WORK._replace(per_request=0.0),
    "no leading run": WORK._replace(leading=False),
    "copy": WORK._replace(copy=0.5),
    "decode": WORK._replace(decode=0.06),
    "strict tail": WORK._replace(r_scale=64.0, u_max=32_768.0, decode=0.1),
}
"""Variants of `work` in Python, named `trial NAME`."""

LENGTHS = tuple(f"lengths {use}" for use in LENGTH_USES)
"""`work` in Python with the true lengths of answers."""


def router_names() -> list[str]:
    """Return the names of all routers, without options."""
    return [
        *POLICY_NAMES,
        "reference x10",
        *BLIND,
        *PEER_RULES,
        *(f"trial {name}" for name in TRIALS),
        *LENGTHS,
    ]


def make_named_router(name: str, scene: CoreScene, world: ReplayWorld) -> ReplayRouter:
    """Return the router of a name.  Raises KeyError or ValueError for unknown names."""
    name, _, apart = name.partition(" @ ")
    if name in BLIND:
        return BLIND[name](scene)
    if apart:
        link = parse_link(apart)
        members = [make_core(name, scene, number) for number in range(link.selectors)]
        return ReplicatedRouter(members, link, world, scene.seed)
    return make_core(name, scene, 0)


class _Options(NamedTuple):
    """Options behind the name of a core or a trial."""

    reports: bool = True
    speeds: bool = False
    session: bool = False
    queue: QueueRules | None = None
    policy: tuple[str, ...] = ()


def make_core(text: str, scene: CoreScene, number: int) -> CoreRouter:
    """Return a core.  number: position of the selector among its peers"""
    name, *rest = text.split(", ")
    options = _options(rest)
    setting = SelectorUsage(options.reports, number, options.queue, options.speeds, options.session)
    if name in LENGTHS:
        return LengthRouter(scene, name.removeprefix("lengths "), setting)
    if name.startswith("trial "):
        rule = TRIALS[name.removeprefix("trial ")]._replace(speeds=options.speeds)
        return WorkRouter(scene, rule, setting)
    if name in PEER_RULES:
        return PeerRouter(scene, PEER_RULES[name], setting)
    config = RouterConfig(policy=name.removesuffix(" x10"), policy_options=options.policy)
    if config.policy not in POLICY_NAMES:
        raise KeyError(name)
    if name.endswith(" x10"):
        config = config._replace(prefill_load_scale=10.0)
    return CoreRouter(scene, config, setting)


def _options(texts: list[str]) -> _Options:
    options = _Options()
    for text in texts:
        match text.split(" "):
            case ["no", "reports"]:
                options = options._replace(reports=False)
            case ["speeds"]:
                options = options._replace(speeds=True)
            case ["session"]:
                options = options._replace(session=True)
            case ["option", option] if option in POLICY_OPTIONS:
                options = options._replace(policy=(*options.policy, option))
            case ["queue", policy, fraction]:
                rules = QueueRules(single_class_profile(_queue_policy(policy), float(fraction)))
                options = options._replace(queue=rules)
            case _:
                raise KeyError(text)
    return options


def _queue_policy(text: str) -> QueuePolicy:
    """Return the queue policy of a name.  Raises KeyError."""
    found: QueuePolicy = {name: name for name in get_args(QueuePolicy)}[text]
    return found


def parse_link(text: str) -> ReplicaNetwork:
    """Parse `2 x 5 ms`, `2 x 5 ms, loss 20` (in percent), `4 x 50 ms, sticky, no share`."""
    first, *more = text.split(", ")
    selectors, _, delay_ms, _ = first.split(" ")
    link = ReplicaNetwork(int(selectors), float(delay_ms) / 1000)
    for option in more:
        match option.split(" "):
            case ["loss", percent]:
                link = link._replace(loss=float(percent) / 100)
            case ["sticky"]:
                link = link._replace(sticky=True)
            case ["no", "help"]:
                link = link._replace(help=frozenset())
            case ["no", part] if part in HELP:
                link = link._replace(help=link.help - {part})
            case _:
                raise KeyError(option)
    return link

"""Command `select-service replay`: results of policies for the requests of a decision log."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from select_service.base.command_line import (
    CommandParser,
    UsageError,
    file_error_text,
    one_of_words,
    positive_number,
    whole_number,
)
from select_service.base.errors import InvalidBody
from select_service.core.placement.policies.policy_registry import POLICIES, parse_policy_choice
from select_service.core.placement.router_config import RouterConfig
from select_service.sim.engine import simple_routers
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.gpu_hardware import A100_40, A100_80, H100_80
from select_service.sim.engine.replay_world import ReplayRouter, ReplayWorld
from select_service.sim.replay import replay_report
from select_service.sim.replay.decision_log_reader import (
    LogFilter,
    LoggedRequests,
    ReplayError,
    read_logs,
)
from select_service.sim.replay.logged_workload import (
    LoggedWorkload,
    ReplayAssumptions,
    make_workload,
)
from select_service.sim.replay.replay_report import WARM_SHARE, RunFigures, compute_figures

REQUESTS, REQUESTS_MAX = 5000, 200_000
SEED_MAX = 2**32 - 1
GPUS = {"a100-40": A100_40, "a100-80": A100_80, "h100-80": H100_80}
CACHE_BLIND_ROUTERS: dict[str, Callable[[CoreScene], ReplayRouter]] = {
    "round-robin": lambda scene: simple_routers.RoundRobinRouter(len(scene.fleet), scene.seed),
    "least-requests": lambda scene: simple_routers.LeastRequestsRouter(
        len(scene.fleet), scene.seed
    ),
    "least-load": lambda scene: simple_routers.LeastLoadRouter(len(scene.fleet), scene.seed),
}
"""Routers without knowledge of caches."""
SUFFIXES = (".html", ".svg")


def replay_command(argv: Sequence[str]) -> int:
    """Run the command and return its exit status.  Raises UsageError."""
    arguments = parser().parse_arguments(argv)
    wanted = LogFilter(arguments.model, arguments.tenant, arguments.requests)
    given = ReplayAssumptions(GPUS[arguments.gpu], arguments.speed, arguments.prefill_tokens_per_s)
    try:
        logged = read_logs(arguments.log, wanted)
        traffic = make_workload(logged, given)
    except ReplayError as error:
        raise UsageError(str(error)) from None
    # Repeated policies are run once, in the given order.
    policies = dict.fromkeys(arguments.policy or ("work", "reference"))
    found = {name: _run_policy(name, traffic, arguments.seed) for name in policies}
    title, notes = _report_title(logged), _report_notes(logged, traffic, given)
    print(replay_report.render_markdown(title, notes, found), end="")
    if arguments.out is None:
        return 0
    is_page = arguments.out.suffix == ".html"
    # The parser admits only the two suffixes.
    text = (
        replay_report.render_html(title, notes, found)
        if is_page
        else replay_report.render_svg(title, found)
    )
    try:
        arguments.out.write_text(text)
    except OSError as error:
        raise UsageError(f"--out: {file_error_text(arguments.out, error, 'written')}") from None
    return 0


def _run_policy(name: str, traffic: LoggedWorkload, seed: int) -> RunFigures:
    print(f"{name}: {traffic.workload.requests} requests ...", file=sys.stderr, flush=True)
    scene = CoreScene(traffic.fleet, traffic.workload.n_blocks, seed)
    world = ReplayWorld(traffic.workload, traffic.fleet)
    return compute_figures(world.run_open(make_router(name, scene), 1.0))


def make_router(name: str, scene: CoreScene) -> ReplayRouter:
    """Return the router of a policy.  name: checked by `_policy_argument`"""
    if name in CACHE_BLIND_ROUTERS:
        return CACHE_BLIND_ROUTERS[name](scene)
    return CoreRouter(scene, parse_policy_choice(name).apply_to(RouterConfig()))


# Texts


def _report_title(logged: LoggedRequests) -> str:
    fleet = logged.fleet
    return f"Replay: {fleet.model_name}, tenant {fleet.tenant_id}"


def _report_notes(
    logged: LoggedRequests, traffic: LoggedWorkload, given: ReplayAssumptions
) -> list[str]:
    workload, sessions = traffic.workload, traffic.workload.sessions
    seconds = float(workload.units[-1])
    begin = datetime.fromtimestamp(logged.decisions[0].at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    n, rate = workload.requests, workload.requests / max(seconds, 1e-9)
    prompts = sum(turn.prompt_tokens for (turn,) in sessions) / n
    outputs = sum(turn.output_tokens for (turn,) in sessions) / n
    faster = f", {given.speed:g} times as fast as they came" if given.speed != 1.0 else ""
    rank = traffic.fleet[0]
    notes = [
        f"{n} requests from {begin} UTC on, in {seconds:.1f} s{faster}: {rate:.2f} a second; "
        f"prompts of {prompts:.0f} tokens, answers of {outputs:.0f}, on the average",
        f"simulated: {len(traffic.fleet)} ranks like {rank.name}, {rank.prefill_tokens_per_s:.0f} "
        f"prompt tokens a second, {rank.kv_blocks} blocks of 64 tokens (the first rank)",
        f"the first {WARM_SHARE:.0%} of the requests are not counted, because caches are cold",
    ]
    left_out = (
        (logged.unbooked, "decisions without a reservation are omitted: they have no hashes"),
        (traffic.too_long, "requests are omitted: too long for the cache of some rank"),
        (traffic.guessed_outputs, "answers without a logged length get the median length"),
    )
    return notes + [f"{count} {what}" for count, what in left_out if count]


# Command line


def parser() -> CommandParser:
    """Return the parser of the command line."""
    result = CommandParser(
        "select-service replay",
        "Replay the requests of a decision log (see --decision-log) under several policies, with "
        "simulated engines in virtual time, and print a table with the time to the first token "
        "and the hit rate of each policy.",
        {
            "select-service replay --log decisions.jsonl": "compare work with reference",
            "select-service replay --log a b --policy work --policy round-robin": "other policies",
            "select-service replay --log decisions.jsonl --out replay.html": "with an HTML report",
        },
        "--log FILE [FILE ...] [OPTION ...]",
        epilog=f"Policies: {', '.join((*POLICIES, *CACHE_BLIND_ROUTERS))};\n"
        "options of one behind it, as in work+strict-tail.",
    )
    result.add_argument(
        "--log",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="decision logs of one or more services",
    )
    result.add_argument(
        "--policy",
        type=_policy_argument,
        action="append",
        metavar="POLICY",
        help="policy to simulate, repeatable; the first is the base of the comparison (default: "
        "work and reference)",
    )
    add = result.add_value
    add("--out", _output_path, "FILE", "report file: picture (.svg) or page (.html)")
    add("--model", str, "NAME", "model of the requests (default: the busiest of the log)")
    add("--tenant", str, "NAME", "tenant of the requests (default: the busiest of the log)")
    limit = f"number of requests, the last of the log, up to {REQUESTS_MAX}"
    add("--requests", whole_number(1, REQUESTS_MAX), "N", limit, REQUESTS)
    add("--speed", positive_number, "FACTOR", "acceleration of the requests", 1.0)
    gpus = one_of_words(*GPUS)
    add("--gpu", gpus, gpus.metavar, "GPU of every rank", "a100-40")
    add(
        "--prefill-tokens-per-s",
        positive_number,
        "TOKENS",
        "prefill speed of a rank, per second (default: that of the GPU)",
    )
    add("--seed", whole_number(0, SEED_MAX), "N", "seed of tie breaks", 1)
    return result


def _policy_argument(text: str) -> str:
    if text in CACHE_BLIND_ROUTERS:
        return text
    try:
        parse_policy_choice(text)
    except InvalidBody as error:
        others = f"; besides, there are {', '.join(CACHE_BLIND_ROUTERS)}"
        raise ArgumentTypeError(f"{error}{others}") from None
    return text


def _output_path(text: str) -> Path:
    """Return the path of the output file.  Raises ValueError."""
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a file name that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"a file in an existing directory; {path.parent} does not exist")
    return path

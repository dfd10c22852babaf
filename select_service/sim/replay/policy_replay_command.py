"""Command `select-service replay`: results of policies for the requests of a log or a trace."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

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
from select_service.files.request_trace import SESSION_GAP_S, TraceError, load_trace
from select_service.sim.engine import simple_routers
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.gpu_hardware import A100_40, A100_80, H100_80
from select_service.sim.engine.pair_fleet import LINK_GBPS, RANKS_PER_HOST
from select_service.sim.engine.replay_world import ReplayRouter, ReplayWorld
from select_service.sim.replay import pair_replay, replay_report
from select_service.sim.replay.decision_log_reader import (
    LogFilter,
    ReplayError,
    read_logs,
)
from select_service.sim.replay.recorded_workload import (
    RecordedWorkload,
    ReplayAssumptions,
    make_fleet,
    make_workload,
    recorded_requests,
)
from select_service.sim.replay.replay_report import WARM_SHARE, RunFigures, compute_figures

REQUESTS, REQUESTS_MAX = 5000, 200_000
SEED_MAX = 2**32 - 1
RANKS, RANKS_MAX = 8, 1024
"""Simulated ranks for a trace."""
RANKS_PER_HOST_MAX = 1024
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


class ReplaySource(NamedTuple):
    """Requests to replay.

    title:    heading of the report
    origin:   part of a sentence that names where the requests come from
    unbooked: decisions of a log without a reservation
    """

    title: str
    origin: str
    traffic: RecordedWorkload
    unbooked: int = 0


def replay_command(argv: Sequence[str]) -> int:
    """Run the command and return its exit status.  Raises UsageError."""
    arguments = parser().parse_arguments(argv)
    given = ReplayAssumptions(GPUS[arguments.gpu], arguments.speed, arguments.prefill_tokens_per_s)
    try:
        source = _read_source(arguments, given)
    except (ReplayError, TraceError) as error:
        raise UsageError(str(error)) from None
    notes = _report_notes(source, given)
    if arguments.pairs is not None:
        return _replay_pairs(arguments, source, notes)
    # Repeated policies are run once, in the given order.
    policies = dict.fromkeys(arguments.policy or ("work", "reference"))
    found = {name: _run_policy(name, source.traffic, arguments.seed) for name in policies}
    title = source.title
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


def _read_source(arguments: Namespace, given: ReplayAssumptions) -> ReplaySource:
    """Return the requests.  Raises UsageError, ReplayError and TraceError."""
    if (arguments.log is None) is (arguments.trace is None):
        raise UsageError("give either --log FILE or --trace FILE")
    if arguments.trace is not None:
        return _read_trace(arguments, given)
    if arguments.ranks is not None:
        raise UsageError("--ranks needs --trace: a log has its ranks")
    logged = read_logs(
        arguments.log, LogFilter(arguments.model, arguments.tenant, arguments.requests)
    )
    fleet = make_fleet(logged.fleet, given)
    traffic = make_workload(recorded_requests(logged.decisions), fleet, given.speed)
    begin = datetime.fromtimestamp(logged.decisions[0].at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    title = f"Replay: {logged.fleet.model_name}, tenant {logged.fleet.tenant_id}"
    return ReplaySource(title, f"from {begin} UTC on", traffic, logged.unbooked)


def _read_trace(arguments: Namespace, given: ReplayAssumptions) -> ReplaySource:
    """Return the requests of a trace.  Raises UsageError, ReplayError and TraceError."""
    if arguments.model is not None or arguments.tenant is not None:
        raise UsageError("--model and --tenant need --log: a trace has neither")
    try:
        trace = load_trace(arguments.trace, arguments.requests)
    except OSError as error:
        raise UsageError(f"--trace: {file_error_text(arguments.trace, error)}") from None
    fleet = (given.adjust_hardware(),) * (arguments.ranks or RANKS)
    traffic = make_workload(trace.requests, fleet, given.speed)
    origin = f"of a {trace.format_name} trace"
    if trace.format_name == "Weka":
        origin += f", whose sessions are taken to begin {SESSION_GAP_S:g} s apart"
    return ReplaySource(f"Replay: {arguments.trace.name}", origin, traffic)


def _replay_pairs(arguments: Namespace, source: ReplaySource, notes: list[str]) -> int:
    """Print the report about splits of the fleet.  Raises UsageError."""
    if arguments.policy or arguments.out:
        raise UsageError("--pairs: not together with --policy or --out, pairs have one rule")
    pairs = pair_replay.PairAssumptions(
        arguments.pairs, arguments.link_gbps, arguments.ranks_per_host, arguments.seed
    )
    try:
        found = pair_replay.replay_splits(source.traffic, pairs)
    except ReplayError as error:
        raise UsageError(str(error)) from None
    notes = [*notes, *pair_replay.pair_notes(pairs)]
    print(pair_replay.render_splits(source.title, notes, found), end="")
    return 0


def _run_policy(name: str, traffic: RecordedWorkload, seed: int) -> RunFigures:
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


def _report_notes(source: ReplaySource, given: ReplayAssumptions) -> list[str]:
    traffic = source.traffic
    workload, sessions = traffic.workload, traffic.workload.sessions
    seconds = float(workload.units[-1])
    n, rate = workload.requests, workload.requests / max(seconds, 1e-9)
    prompts = sum(turn.prompt_tokens for (turn,) in sessions) / n
    outputs = sum(turn.output_tokens for (turn,) in sessions) / n
    faster = f", {given.speed:g} times as fast as they came" if given.speed != 1.0 else ""
    rank = traffic.fleet[0]
    notes = [
        f"{n} requests {source.origin}, in {seconds:.1f} s{faster}: {rate:.2f} a second; "
        f"prompts of {prompts:.0f} tokens, answers of {outputs:.0f} on average",
        f"simulated: {len(traffic.fleet)} ranks like {rank.name}, {rank.prefill_tokens_per_s:.0f} "
        f"prompt tokens a second, {rank.kv_blocks} blocks of 64 tokens (the first rank)",
        f"the first {WARM_SHARE:.0%} of the requests are not counted, because caches are cold",
    ]
    # Counts come first, so that each note reads well with one as with many.
    left_out = (
        (source.unbooked, "omitted decisions without a reservation: they have no hashes"),
        (traffic.too_long, "omitted requests: too long for the cache of some rank"),
        (traffic.guessed_outputs, "answers with the median length: theirs is not logged"),
    )
    return notes + [f"{count} {what}" for count, what in left_out if count]


# Command line


def parser() -> CommandParser:
    """Return the parser of the command line."""
    result = CommandParser(
        "select-service replay",
        "Replay the requests of a decision log (see --decision-log) or of a request trace under "
        "several policies, with simulated engines in virtual time, and print a table with the "
        "time to the first token and the hit rate of each policy.",
        {
            "select-service replay --log decisions.jsonl": "compare work with reference",
            "select-service replay --trace trace.jsonl --ranks 16": "a trace of Mooncake, Bailian "
            "or Weka",
            "select-service replay --log decisions.jsonl --pairs 4:12,6:10": "prefill and decode "
            "apart",
        },
        "(--log FILE [FILE ...] | --trace FILE) [OPTION ...]",
        epilog=f"Policies: {', '.join((*POLICIES, *CACHE_BLIND_ROUTERS))};\n"
        "options of one behind it, as in work+strict-tail.",
    )
    result.add_argument(
        "--log",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="decision logs of one or more services",
    )
    result.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="request trace of Mooncake, Bailian or Weka, plain or .gz; of Weka also a folder",
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
    _add_fleet_flags(result)
    return result


def _add_fleet_flags(to: CommandParser) -> None:
    """Add the flags of the simulated ranks and of their requests."""
    add = to.add_value
    ranks = f"with --trace: simulated ranks (default {RANKS})"
    add("--ranks", whole_number(1, RANKS_MAX), "N", ranks)
    limit = (
        f"number of requests, the last of the log or the first of the trace, up to {REQUESTS_MAX}"
    )
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
    add(
        "--pairs",
        pair_replay.parse_splits,
        "SPLIT[,SPLIT]",
        "splits into P prefill and D decode ranks, as P:D, compared with all ranks together "
        "instead of policies",
    )
    add("--link-gbps", positive_number, "GBPS", "with --pairs: network link of a host", LINK_GBPS)
    hosts = whole_number(1, RANKS_PER_HOST_MAX)
    add("--ranks-per-host", hosts, "N", "with --pairs: ranks on a host", RANKS_PER_HOST)
    add("--seed", whole_number(0, SEED_MAX), "N", "seed of tie breaks", 1)


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

"""`select-service replay`: what policies would have done with the requests of a decision log."""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from select_service.core.decide.policies import POLICIES, choice_named
from select_service.core.decide.router_config import RouterConfig
from select_service.errors import InvalidBody
from select_service.replaying import choosers, report
from select_service.replaying.core_choosers import CoreChooser, Scene
from select_service.replaying.figures import WARM_SHARE, Figures, figures_of
from select_service.replaying.hardware import A100_40, A100_80, H100_80
from select_service.replaying.log_files import Logged, ReplayError, Wanted, read_logs
from select_service.replaying.traffic import Given, Traffic, traffic_of
from select_service.replaying.world import Chooser, World

REQUESTS, REQUESTS_MAX = 5000, 200_000
GPUS = {"a100-40": A100_40, "a100-80": A100_80, "h100-80": H100_80}
BLIND: dict[str, Callable[[Scene], Chooser]] = {
    "round-robin": lambda scene: choosers.RoundRobin(len(scene.fleet), scene.seed),
    "least-requests": lambda scene: choosers.LeastRequests(len(scene.fleet), scene.seed),
    "least-load": lambda scene: choosers.LeastLoad(len(scene.fleet), scene.seed),
}
"""Routers that know nothing of caches."""
SUFFIXES = (".html", ".svg")


def replay_command(argv: Sequence[str]) -> int:
    """Exit status: 0 shown, 1 the picture cannot be written, 2 a wrong argument or file."""
    arguments = _parser().parse_args(argv)
    wanted = Wanted(arguments.model, arguments.tenant, arguments.requests)
    given = Given(GPUS[arguments.gpu], arguments.speed, arguments.prefill_tokens_per_s)
    try:
        logged = read_logs(arguments.log, wanted)
        traffic = traffic_of(logged, given)
    except ReplayError as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return 2
    policies = dict.fromkeys(arguments.policy or ("work", "reference"))
    found = {name: _run(name, traffic, arguments.seed) for name in policies}
    title, notes = _title(logged), _notes(logged, traffic, given)
    print(report.markdown(title, notes, found), end="")
    if arguments.out is None:
        return 0
    is_page = arguments.out.suffix == ".html"
    text = report.page(title, notes, found) if is_page else report.picture(title, found)
    try:
        arguments.out.write_text(text)
    except OSError as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(name: str, traffic: Traffic, seed: int) -> Figures:
    print(f"{name}: {traffic.workload.requests} requests ...", file=sys.stderr, flush=True)
    scene = Scene(traffic.fleet, traffic.workload.n_blocks, seed)
    world = World(traffic.workload, traffic.fleet)
    return figures_of(world.run_open(chooser_of(name, scene), 1.0))


def chooser_of(name: str, scene: Scene) -> Chooser:
    """name: as `_policy` admits it"""
    if name in BLIND:
        return BLIND[name](scene)
    return CoreChooser(scene, choice_named(name).within(RouterConfig()))


# --- words


def _title(logged: Logged) -> str:
    fleet = logged.fleet
    return f"Replay: {fleet.model_name}, tenant {fleet.tenant_id}"


def _notes(logged: Logged, traffic: Traffic, given: Given) -> list[str]:
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
        f"the first {WARM_SHARE:.0%} of the requests are not counted: caches are cold",
    ]
    left_out = (
        (logged.unbooked, "decisions had no booking, and so no hashes: left out"),
        (traffic.too_long, "requests do not fit into the cache of every rank: left out"),
        (traffic.guessed_outputs, "answers have no length in the log: as long as the median one"),
    )
    return notes + [f"{count} {what}" for count, what in left_out if count]


# --- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="select-service replay",
        description="What policies would have done with the requests of a decision log (see "
        "--decision-log): simulated engines in virtual time, the time to the first token and the "
        "hit rate of each policy as a table.",
        epilog=f"Policies: {', '.join((*POLICIES, *BLIND))}; options of one behind it, as in "
        "work+strict-tail.",
    )
    add = parser.add_argument
    add("--log", type=Path, nargs="+", required=True, metavar="FILE", help="decision logs")
    add(
        "--policy",
        type=_policy,
        action="append",
        metavar="NAME",
        help="may be given several times, the first is what others are compared with (default: "
        "work and reference)",
    )
    add("--out", type=_out, metavar="FILE", help="a picture (.svg), or a page with it (.html)")
    add("--model", metavar="NAME", help="of several in the log (default: the busiest)")
    add("--tenant", metavar="NAME", help="of several in the log (default: the busiest)")
    add(
        "--requests",
        type=_requests,
        default=REQUESTS,
        metavar="N",
        help=f"the last so many, up to {REQUESTS_MAX} (default %(default)s)",
    )
    add("--speed", type=_positive, default=1.0, metavar="X", help="requests come X times faster")
    add("--gpu", choices=GPUS, default="a100-40", help="of every rank (default %(default)s)")
    add(
        "--prefill-tokens-per-s",
        type=_positive,
        metavar="N",
        help="prompt tokens that a rank computes in a second (default: as the GPU does)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of draws among equals (default 1)")
    return parser


def _policy(text: str) -> str:
    if text in BLIND:
        return text
    try:
        choice_named(text)
    except InvalidBody as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _out(text: str) -> Path:
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"expected a name that ends in {' or '.join(SUFFIXES)}")
    return path


def _requests(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= REQUESTS_MAX:
        raise argparse.ArgumentTypeError(f"expected 1 to {REQUESTS_MAX}")
    return int(text)


def _positive(text: str) -> float:
    value = float(text)
    if not (isfinite(value) and value > 0.0):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value

"""`select-service replay`: what policies would have done with the requests of a decision log."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from select_service.command_line import (
    CommandParser,
    UsageError,
    above_zero,
    choice,
    file_fault,
    typed,
    whole,
)
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
SEED_MAX = 2**32 - 1
GPUS = {"a100-40": A100_40, "a100-80": A100_80, "h100-80": H100_80}
BLIND: dict[str, Callable[[Scene], Chooser]] = {
    "round-robin": lambda scene: choosers.RoundRobin(len(scene.fleet), scene.seed),
    "least-requests": lambda scene: choosers.LeastRequests(len(scene.fleet), scene.seed),
    "least-load": lambda scene: choosers.LeastLoad(len(scene.fleet), scene.seed),
}
"""Routers that know nothing of caches."""
SUFFIXES = (".html", ".svg")


def replay_command(argv: Sequence[str]) -> int:
    """Exit status.  Raises UsageError."""
    arguments = parser().read(argv)
    wanted = Wanted(arguments.model, arguments.tenant, arguments.requests)
    given = Given(GPUS[arguments.gpu], arguments.speed, arguments.prefill_tokens_per_s)
    try:
        logged = read_logs(arguments.log, wanted)
        traffic = traffic_of(logged, given)
    except ReplayError as error:
        raise UsageError(str(error)) from None
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
        raise UsageError(f"--out: {file_fault(arguments.out, error, 'written')}") from None
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


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-service replay",
        "What policies would have done with the requests of a decision log (see --decision-log): "
        "simulated engines in virtual time, the time to the first token and the hit rate of each "
        "policy as a table.",
        {
            "select-service replay --log decisions.jsonl": "work next to reference",
            "select-service replay --log a b --policy work --policy round-robin": "other policies",
            "select-service replay --log decisions.jsonl --out replay.html": "with a page",
        },
        "--log FILE [FILE ...] [OPTION ...]",
        epilog=f"Policies: {', '.join((*POLICIES, *BLIND))};\noptions of one behind it, as in "
        "work+strict-tail.",
    )
    add = result.add_argument
    add("--log", type=Path, nargs="+", required=True, metavar="FILE", help="decision logs")
    add(
        "--policy",
        type=_policy,
        action="append",
        metavar="POLICY",
        help="policy to simulate; may be repeated, others are compared with the first (default: "
        "work and reference)",
    )
    add("--out", type=typed(_out), metavar="FILE", help="picture (.svg), or a page with it (.html)")
    add("--model", metavar="NAME", help="model of the requests (default: the busiest of the log)")
    add("--tenant", metavar="NAME", help="tenant of the requests (default: the busiest of the log)")
    add(
        "--requests",
        type=typed(whole(1, REQUESTS_MAX)),
        default=REQUESTS,
        metavar="N",
        help=f"number of requests, the last of the log, up to {REQUESTS_MAX} (default %(default)s)",
    )
    add(
        "--speed",
        type=typed(above_zero),
        default=1.0,
        metavar="FACTOR",
        help="factor by which requests come faster than they did (default 1)",
    )
    gpus = choice(*GPUS)
    add(
        "--gpu",
        type=typed(gpus),
        metavar=gpus.kind,
        default="a100-40",
        help="GPU of every rank (default %(default)s)",
    )
    add(
        "--prefill-tokens-per-s",
        type=typed(above_zero),
        metavar="TOKENS",
        help="prompt tokens that a rank computes in a second (default: as the GPU does)",
    )
    add(
        "--seed",
        type=typed(whole(0, SEED_MAX)),
        default=1,
        metavar="N",
        help="seed of draws among equals (default 1)",
    )
    return result


def _policy(text: str) -> str:
    if text in BLIND:
        return text
    try:
        choice_named(text)
    except InvalidBody as error:
        others = f"; besides, there are {', '.join(BLIND)}"
        raise ArgumentTypeError(f"{error}{others}") from None
    return text


def _out(text: str) -> Path:
    """Raises ValueError."""
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a name that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"a file in a directory that exists, and {path.parent} does not")
    return path

"""`select-planner replay`: what configurations would have done, side by side."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from select_service.planner.assembling import deployment_of
from select_service.planner.config import DeploymentConfig, LimitsGiven
from select_service.planner.core.inputs import Limits, Role, TickInput
from select_service.planner.core.settings import Settings, gpus_of, min_endpoint_of, roles_of
from select_service.planner.core.tick import Deployment, Effects
from select_service.planner.decision_lines import LogError, read_lines
from select_service.planner.profiles import ProfileError
from select_service.planner.reading import DOCUMENT, ConfigError, Profile, read_config
from select_service.planner.replay.engine import (
    MAX_KV_TOKENS,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    Request,
    Speed,
)
from select_service.planner.replay.fleet import FleetOptions
from select_service.planner.replay.least import least_gpu_hours, least_replicas
from select_service.planner.replay.run import Course, Outcome, Run, promise_of
from select_service.planner.replay.tables import again_table, outcome_table
from select_service.planner.replay.traffic import repeated, trace_requests
from select_service.planner.replay.what_if import Again, run_again
from select_service.planner.report.drawing import (
    FORMATS,
    FormatError,
    check_format,
    drawing_of,
)
from select_service.planner.report.page import page_of
from select_service.planner.report.views import view_of
from select_service.planner.status import DeploymentStatus
from select_service.request_trace import TraceError

DIFFERS = 1
"""Exit status when a log that was run again with its own settings decided otherwise."""
LEAST_INTERVAL_S = 300.0
HOURS_MAX = 24.0 * 7
SIMULATED_MAX = 10_000
"""Engines of a role."""
ITERATION_S_MIN = 1e-6


class Named(NamedTuple):
    """One configuration of several."""

    name: str
    config: DeploymentConfig


class Compared(Struct, frozen=True, kw_only=True):
    """What `--json` prints of a trace."""

    name: str
    outcome: Outcome


class Differing(Struct, frozen=True, kw_only=True):
    """What `--json` prints of a log. name: of the other settings, or of those of the log"""

    name: str
    deployments: list[Again]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def replay_command(words: Sequence[str]) -> int:
    """Exit status. Raises ConfigError for what cannot be done."""
    given = parser().parse_args(words)
    if (given.log is None) is (given.trace is None):
        raise ConfigError("give either --log FILE or --trace FILE")
    if given.log is not None and given.report is not None:
        raise ConfigError("--report is for --trace")
    if given.report is not None and not given.report.parent.is_dir():
        raise ConfigError(f"--report: there is no directory {given.report.parent}")
    try:
        check_format(given.report_format)
        return _replay_log(given) if given.log is not None else _replay_trace(given)
    except (FormatError, LogError, ProfileError, TraceError, OSError) as error:
        raise ConfigError(str(error)) from None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = _Parser(
        prog="select-planner replay",
        description="Run a decision log again, or try configurations on a trace and a simulated "
        "fleet. The same words give the same bytes.",
        allow_abbrev=False,
    )
    add = result.add_argument
    add("--log", type=Path, metavar="FILE", help="decision log (JSON lines)")
    add("--trace", type=Path, metavar="FILE", help="Mooncake JSONL, plain or .gz")
    add("--config", action="append", metavar="FILE", help="YAML; again for one more")
    add("--deployment", metavar="NAME", help="of the files; the first one if it is not given")
    add("--profile", action="append", choices=["ours", "document"], help="again for one more")
    add("--speedup", type=_positive, default=1.0, help="requests arrive so many times faster")
    add("--hours", type=_positive, help="the trace again and again, or a part of it")
    add("--startup-secs", type=_not_negative, default=120.0, help="of an engine (120)")
    add("--drain-secs", type=_positive, default=300.0, help="until open requests fail (300)")
    add("--replicas", type=int, default=1, help="of each role at the beginning (1)")
    add("--queue-tokens", type=_positive, help="waiting prefill of an engine, then rejected")
    add(
        "--engine",
        type=_speed,
        default=Speed(),
        metavar="BASE,PREFILL,KV,REQUEST",
        help="seconds of an iteration: alone, and for each prefill token, KV token and request "
        "(0.008,5e-5,3e-8,1e-4)",
    )
    add("--least", action="store_true", help="the least possible GPU hours as well (slow)")
    add("--json", action="store_true", help="instead of a table")
    add("--report", type=Path, metavar="FILE", help="HTML, of a trace")
    add(
        "--report-format",
        choices=FORMATS,
        default="svg",
        help="plotly: charts to zoom, 5 MB; needs the extra `report`",
    )
    return result


def configurations(given: argparse.Namespace) -> list[Named]:
    """Every file in every profile. Raises ConfigError."""
    profiles: list[Profile] = given.profile or ["ours"]
    found = []
    for profile in profiles:
        for path in given.config or [None]:
            name = profile if path is None else f"{Path(path).stem} ({profile})"
            found.append(Named(name, _deployment(path, profile, given.deployment)))
    return found


def _deployment(path: str | None, profile: Profile, name: str | None) -> DeploymentConfig:
    if path is None:
        own = DOCUMENT if profile == "document" else {}
        return DeploymentConfig(name="replay", model_name="replay", **own)
    known = read_config(path, profile).deployments
    if name is None:
        return known[0]
    for each in known:
        if each.name == name:
            return each
    raise ConfigError(f"{path}: no deployment `{name}`")


def _replay_log(given: argparse.Namespace) -> int:
    """0 when nothing differs from the log, or when other settings were asked for."""
    alone = given.config is None and given.profile is None
    runs: list[tuple[str, Settings | None]] = [("the log's own settings", None)]
    if not alone:
        runs = [(each.name, each.config) for each in configurations(given)]
    found = [
        Differing(name=name, deployments=run_again(read_lines(given.log), _deployed, settings))
        for name, settings in runs
    ]
    _print(_json(found) if given.json else again_table((f.name, f.deployments) for f in found))
    differs = any(one.differing for each in found for one in each.deployments)
    return DIFFERS if alone and differs else 0


def _replay_trace(given: argparse.Namespace) -> int:
    requests = trace_requests(given.trace, speedup=given.speedup)
    if not requests:
        raise ConfigError(f"{given.trace}: no requests")
    last_s = requests[-1].arrived_s
    period_s = last_s + last_s / max(1, len(requests) - 1)
    until_s = period_s if given.hours is None else given.hours * 3600.0
    if until_s > HOURS_MAX * 3600.0:
        hours = until_s / 3600.0
        raise ConfigError(f"--hours: expected at most {HOURS_MAX:g}, got {hours:.6g}")
    found, views = [], []
    for name, config in configurations(given):
        course = _course(given, config, until_s)
        least = None
        if given.least:
            least = _least(list(repeated(requests, until_s, period_s)), config, course)
        status = DeploymentStatus(name, settings_of(config))
        outcome = _run(config, course, status).go(repeated(requests, until_s, period_s), least)
        found.append(Compared(name=name, outcome=outcome))
        views.append(view_of(status, name, least))
    _print(_json(found) if given.json else outcome_table((f.name, f.outcome) for f in found))
    if given.report is not None:
        title = f"Replay of {given.trace.name}"
        given.report.write_bytes(page_of(views, title, drawing_of(given.report_format)))
    return 0


def _run(config: DeploymentConfig, course: Course, status: DeploymentStatus) -> Run:
    def follow(told: TickInput, effects: Effects) -> None:
        status.ticked(told, effects, None)

    deployment = _deployed(config, 0.0, config.warmup_trace)
    return Run(config, deployment, course, follow)


def _deployed(settings: Settings, start_s: float, warmup_trace: str | None = None) -> Deployment:
    """Raises ConfigError for a predictor that is not installed."""
    try:
        return deployment_of(settings, start_s, warmup_trace=warmup_trace)
    except KeyError as error:
        raise ConfigError(f"load_predictor: {error} is not installed") from None


def settings_of(config: Settings) -> Settings:
    """What the core reads, without what only the edge does."""
    return Settings(**{each: getattr(config, each) for each in Settings.__struct_fields__})


def _course(given: argparse.Namespace, config: DeploymentConfig, until_s: float) -> Course:
    roles = roles_of(config)
    fleet = FleetOptions(
        roles=roles,
        speed=dict.fromkeys(roles, given.engine),
        limits={role: limits_of(config, role) for role in roles},
        startup_s=given.startup_secs,
        drain_s=given.drain_secs,
    )
    if given.queue_tokens is not None:
        fleet = msgspec.structs.replace(fleet, queue_tokens_max=given.queue_tokens)
    if not 0 <= given.replicas <= SIMULATED_MAX:
        raise ConfigError(f"--replicas: expected 0 to {SIMULATED_MAX}, got {given.replicas}")
    return Course(fleet=fleet, replicas=dict.fromkeys(roles, given.replicas), until_s=until_s)


def limits_of(config: DeploymentConfig, role: Role) -> Limits:
    """As the configuration says, else as simulated engines are."""
    given: LimitsGiven = config.prefill_limits if role is Role.PREFILL else config.decode_limits
    return Limits(
        num_gpu=gpus_of(config, role),
        max_num_batched_tokens=given.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=given.max_num_seqs or MAX_NUM_SEQS,
        max_kv_tokens=given.max_kv_tokens or MAX_KV_TOKENS,
        context_length=given.context_length,
    )


def _least(requests: list[Request], config: Settings, course: Course) -> float:
    """With as many replicas as the budget allows of one role beside the least of the other."""
    roles = course.fleet.roles
    gpus = {role: gpus_of(config, role) for role in roles}
    least = {role: min_endpoint_of(config, role) for role in roles}
    budget = config.max_gpu_budget if config.max_gpu_budget >= 0 else 64
    most = {role: max(1, budget // gpus[role]) for role in roles}
    needed = least_replicas(
        requests, course.fleet, promise_of(config), interval_s=LEAST_INTERVAL_S, most=most
    )
    return least_gpu_hours(needed, gpus, interval_s=LEAST_INTERVAL_S, least=least)


def _positive(text: str) -> float:
    return _number(text, above=True)


def _not_negative(text: str) -> float:
    return _number(text, above=False)


def _number(text: str, *, above: bool) -> float:
    value = float(text)
    if not 0.0 <= value < 1e12 or (above and value == 0.0):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def _speed(text: str) -> Speed:
    parts = [_number(each, above=False) for each in islice(text.split(","), 5)]
    if len(parts) != 4 or parts[0] < ITERATION_S_MIN:
        raise argparse.ArgumentTypeError(
            f"expected four numbers, the first at least {ITERATION_S_MIN:g}, got {text}"
        )
    return Speed(*parts)


def _json(found: Sequence[Struct]) -> Iterator[str]:
    yield msgspec.json.format(msgspec.json.encode(found, order="deterministic")).decode()


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")

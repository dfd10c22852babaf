"""`select-planner replay`: what configurations would have done, side by side."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from select_service.command_line import (
    CommandParser,
    above_zero,
    choice,
    file_fault,
    number,
    typed,
    whole,
)
from select_service.planner.assembling import deployment_of
from select_service.planner.config import DeploymentConfig, LimitsGiven
from select_service.planner.core.inputs import Limits, Role, TickInput
from select_service.planner.core.settings import Settings, gpus_of, min_endpoint_of, roles_of
from select_service.planner.core.tick import Deployment, Effects
from select_service.planner.decision_lines import LogError, read_lines
from select_service.planner.profiles import ProfileError
from select_service.planner.reading import DOCUMENT, PROFILES, ConfigError, Profile, read_config
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
SECONDS_MAX = 1e12


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


def replay_command(words: Sequence[str]) -> int:
    """Exit status.  Raises UsageError for what cannot be done."""
    given = parser().read(words)
    if (given.log is None) is (given.trace is None):
        raise ConfigError("give either --log FILE or --trace FILE")
    if given.log is not None and given.report is not None:
        raise ConfigError("--report is for --trace")
    try:
        check_format(given.report_format)
        return _replay_log(given) if given.log is not None else _replay_trace(given)
    except (FormatError, LogError, ProfileError, TraceError) as error:
        raise ConfigError(str(error)) from None


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-planner replay",
        "Configurations tried on a trace and a simulated fleet, side by side, or a decision log "
        "run again. The same words give the same bytes.",
        {
            "select-planner replay --trace t.jsonl.gz --config now.yaml": "one configuration",
            "select-planner replay --trace t.jsonl.gz --config a.yaml --config b.yaml": "two",
            "select-planner replay --log decisions.jsonl --config other.yaml": "what would differ",
        },
        "(--trace FILE | --log FILE) [OPTION ...]",
    )
    add = result.add_argument
    add("--log", type=Path, metavar="FILE", help="decision log of a planner, JSON lines")
    add("--trace", type=Path, metavar="FILE", help="trace of requests, Mooncake JSONL or .gz")
    add(
        "--config",
        action="append",
        metavar="FILE",
        help="configuration in YAML; may be repeated (default: default settings)",
    )
    add("--deployment", metavar="NAME", help="deployment of the files (default: the first)")
    profile = choice(*PROFILES)
    add(
        "--profile",
        action="append",
        type=typed(profile),
        metavar=profile.kind,
        help="values of settings that are not given, document: those of the reference planner; "
        "may be repeated (default ours)",
    )
    _add_fleet(result)
    add("--least", action="store_true", help="the least possible GPU hours as well (slow)")
    add("--json", action="store_true", help="output as JSON instead of a table")
    add("--report", type=typed(_out), metavar="FILE", help="HTML page of a trace (default: none)")
    form = choice(*FORMATS)
    add(
        "--report-format",
        type=typed(form),
        metavar=form.kind,
        default="svg",
        help="charts of the page, plotly: to zoom, 5 MB, with the extra `report` (default svg)",
    )
    return result


def _add_fleet(to: CommandParser) -> None:
    """Requests and engines of a trace."""
    add = to.add_argument
    positive, seconds = typed(above_zero), typed(number(0, SECONDS_MAX))
    add(
        "--speedup",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="factor by which requests come faster than in the trace (default 1)",
    )
    add(
        "--hours",
        type=positive,
        metavar="HOURS",
        help="length of the replay, of a part of the trace or of it again and again (default: "
        "the trace once)",
    )
    add(
        "--startup-secs",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="time that an engine needs to start (default 120)",
    )
    add(
        "--drain-secs",
        type=positive,
        default=300.0,
        metavar="SECONDS",
        help="time until the open requests of an engine that goes fail (default 300)",
    )
    add(
        "--replicas",
        type=typed(whole(0, SIMULATED_MAX)),
        default=1,
        metavar="N",
        help="engines of each role at the beginning (default 1)",
    )
    add(
        "--queue-tokens",
        type=positive,
        metavar="TOKENS",
        help="prefill that may wait at every engine before a request is rejected (default: any)",
    )
    add(
        "--engine",
        type=typed(_speed),
        default=Speed(),
        metavar="BASE,PREFILL,KV,REQUEST",
        help="seconds of an iteration: alone, and for each prefill token, KV token and request "
        "(default 0.008,5e-5,3e-8,1e-4)",
    )


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
    try:
        found = [
            Differing(name=name, deployments=run_again(read_lines(given.log), _deployed, settings))
            for name, settings in runs
        ]
    except OSError as error:
        raise ConfigError(f"--log: {file_fault(given.log, error)}") from None
    _print(_json(found) if given.json else again_table((f.name, f.deployments) for f in found))
    differs = any(one.differing for each in found for one in each.deployments)
    return DIFFERS if alone and differs else 0


def _replay_trace(given: argparse.Namespace) -> int:
    try:
        requests = trace_requests(given.trace, speedup=given.speedup)
    except OSError as error:
        raise ConfigError(f"--trace: {file_fault(given.trace, error)}") from None
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
        page = page_of(views, title, drawing_of(given.report_format))
        try:
            given.report.write_bytes(page)
        except OSError as error:
            fault = file_fault(given.report, error, "written")
            raise ConfigError(f"--report: {fault}") from None
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


def _out(text: str) -> Path:
    """Raises ValueError."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ValueError("a file in a directory that exists")
    return path


def _speed(text: str) -> Speed:
    """Raises ValueError."""
    read, fault = number(0, SECONDS_MAX), f"four numbers, the first at least {ITERATION_S_MIN:g}"
    try:
        parts = [read(each) for each in islice(text.split(","), 5)]
    except ValueError:
        raise ValueError(fault) from None
    if len(parts) != 4 or parts[0] < ITERATION_S_MIN:
        raise ValueError(fault)
    return Speed(*parts)


def _json(found: Sequence[Struct]) -> Iterator[str]:
    yield msgspec.json.format(msgspec.json.encode(found, order="deterministic")).decode()


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")

"""Command `select-planner replay`: comparison of configurations."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from select_service.base.command_line import (
    CommandParser,
    argument_type,
    file_error_text,
    finite_number,
    one_of_words,
    positive_number,
    whole_number,
)
from select_service.base.suggestions import printable_name
from select_service.files.request_trace import TraceError
from select_service.planner.config import ConfiguredLimits, DeploymentConfig
from select_service.planner.config_loader import (
    DOCUMENT_DEFAULTS,
    PROFILES,
    ConfigProfile,
    PlannerConfigError,
    read_config,
)
from select_service.planner.core.settings import (
    DeploymentSettings,
    minimum_replicas,
    replica_gpus,
    scaled_roles,
)
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import EngineLimits, Role, TickInput
from select_service.planner.deployment_status import DeploymentStatus
from select_service.planner.planner_log_lines import DecisionLogError, read_lines
from select_service.planner.profile_files import ProfileFileError
from select_service.planner.replay.least_gpu_hours import find_least_replicas, least_gpu_hours
from select_service.planner.replay.log_replay import ReplayComparison, repeat_log
from select_service.planner.replay.planner_run import (
    PlannerRun,
    ReplayCourse,
    ReplayOutcome,
    make_promise,
)
from select_service.planner.replay.replay_tables import (
    comparison_table,
    model_advice,
    outcome_table,
)
from select_service.planner.replay.replay_traffic import repeat_requests, trace_requests
from select_service.planner.replay.simulated_engine import (
    MAX_KV_TOKENS,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    EngineSpeed,
    SimulatedRequest,
)
from select_service.planner.replay.simulated_fleet import FleetOptions
from select_service.planner.report.report_page import render_page
from select_service.planner.report.report_views import make_view
from select_service.planner.wiring import build_deployment

EXIT_DIFFERS = 1
"""Exit status if a log run again with its own settings gave other decisions."""
LEAST_INTERVAL_S = 300.0
HOURS_MAX = 24.0 * 7
SIMULATED_ENGINES_MAX = 10_000
"""Maximum engines of a role."""
ITERATION_S_MIN = 1e-6
SECONDS_MAX = 1e12


class NamedConfig(NamedTuple):
    """Configuration with its name in the comparison."""

    name: str
    config: DeploymentConfig


class TraceComparison(Struct, frozen=True, kw_only=True):
    """Element of the `--json` output of a trace."""

    name: str
    outcome: ReplayOutcome


class LogComparison(Struct, frozen=True, kw_only=True):
    """Element of the `--json` output of a log. name: name of the settings"""

    name: str
    deployments: list[ReplayComparison]


def replay_command(words: Sequence[str]) -> int:
    """Run the command and return the exit status.  Raises UsageError."""
    given = build_parser().parse_arguments(words)
    if (given.log is None) is (given.trace is None):
        raise PlannerConfigError("give either --log FILE or --trace FILE")
    if given.log is not None and given.report is not None:
        raise PlannerConfigError("--report needs --trace: a log has no report")
    try:
        return _replay_log(given) if given.log is not None else _replay_trace(given)
    except (DecisionLogError, ProfileFileError, TraceError) as error:
        raise PlannerConfigError(str(error)) from None


def build_parser() -> CommandParser:
    """Build the command line."""
    result = CommandParser(
        "select-planner replay",
        "Comparison of configurations on a trace and a simulated fleet, or a decision log run "
        "again. Equal arguments give equal output.",
        {
            "select-planner replay --trace t.jsonl.gz --config now.yaml": "one configuration",
            "select-planner replay --trace t.jsonl.gz --config a.yaml --config b.yaml": "two",
            "select-planner replay --log decisions.jsonl --config "
            "other.yaml": "decisions that would differ",
        },
        "(--trace FILE | --log FILE) [OPTION ...]",
    )
    add = result.add_argument
    add("--log", type=Path, metavar="FILE", help="decision log of a planner, JSON Lines")
    add("--trace", type=Path, metavar="FILE", help="request trace of Mooncake, Bailian or Weka")
    add(
        "--config",
        action="append",
        metavar="FILE",
        help="configuration file, YAML; may be repeated (default: default settings)",
    )
    add_value = result.add_value
    add_value(
        "--deployment", str, "NAME", "name of the deployment in the files (default: the first)"
    )
    profile = one_of_words(*PROFILES)
    add(
        "--profile",
        action="append",
        type=argument_type(profile),
        metavar=profile.metavar,
        help="defaults of omitted settings, document: those of Dynamo's planner; may be repeated "
        "(default ours)",
    )
    _add_fleet(result)
    add("--least", action="store_true", help="least possible GPU hours in addition (slow)")
    add("--json", action="store_true", help="output as JSON instead of a table")
    add_value("--report", _parse_page_path, "FILE", "HTML report of a trace (default: none)")
    return result


def _add_fleet(to: CommandParser) -> None:
    """Add the flags for requests and engines of a trace."""
    add, engines = to.add_value, whole_number(0, SIMULATED_ENGINES_MAX)
    add("--speedup", positive_number, "FACTOR", "factor on the arrival rate of the trace", 1.0)
    add(
        "--hours",
        positive_number,
        "HOURS",
        "length of the replay, shorter than the trace or with repetitions (default: the trace "
        "once)",
    )
    seconds = finite_number(0, SECONDS_MAX)
    add("--startup-secs", seconds, "SECONDS", "start-up time of an engine", 120.0)
    drain = "maximum drain of an engine, after which its requests fail"
    add("--drain-secs", positive_number, "SECONDS", drain, 300.0)
    add("--replicas", engines, "N", "engines of each role at the start", 1)
    queue = "maximum queued prefill of the least loaded engine (default: no limit)"
    add("--queue-tokens", positive_number, "TOKENS", queue)
    add(
        "--engine",
        _parse_speed,
        "BASE,PREFILL,KV,REQUEST",
        "seconds of an iteration: base, and per prefill token, KV token and request "
        "(default 0.008,5e-5,3e-8,1e-4)",
        EngineSpeed(),
    )


def read_configurations(args: argparse.Namespace) -> list[NamedConfig]:
    """Return every file in every profile. Raises PlannerConfigError."""
    profiles: list[ConfigProfile] = args.profile or ["ours"]
    found = []
    for profile in profiles:
        for path in args.config or [None]:
            name = profile if path is None else f"{Path(path).stem} ({profile})"
            found.append(NamedConfig(name, _read_deployment(path, profile, args.deployment)))
    return found


def _read_deployment(
    path: str | None, profile: ConfigProfile, name: str | None
) -> DeploymentConfig:
    """Return a deployment of a file, or of the defaults. Raises PlannerConfigError."""
    if path is None:
        own = DOCUMENT_DEFAULTS if profile == "document" else {}
        return DeploymentConfig(name="replay", model_name="replay", **own)
    config = read_config(path, profile)
    known = config.deployments
    if config.plugins:
        names = ", ".join(printable_name(each.name) for each in config.plugins)
        # The simulated fleet must give equal results on every run, which code of others need not.
        print(f"select-planner: plugins are not called in replays: {names}", file=sys.stderr)
    if name is None:
        return known[0]
    for each in known:
        if each.name == name:
            return each
    raise PlannerConfigError(f"{path}: deployment `{name}` does not exist")


def _replay_log(args: argparse.Namespace) -> int:
    """Run a log again. 0 if nothing differs, or if other settings were given."""
    alone = args.config is None and args.profile is None
    runs: list[tuple[str, DeploymentSettings | None]] = [("the log's own settings", None)]
    if not alone:
        runs = [(each.name, each.config) for each in read_configurations(args)]
    try:
        found = [
            LogComparison(
                name=name, deployments=repeat_log(read_lines(args.log), _build_deployment, settings)
            )
            for name, settings in runs
        ]
    except OSError as error:
        raise PlannerConfigError(f"--log: {file_error_text(args.log, error)}") from None
    _print_results(found, comparison_table((f.name, f.deployments) for f in found), args.json)
    differs = any(one.differing for each in found for one in each.deployments)
    return EXIT_DIFFERS if alone and differs else 0


def _replay_trace(args: argparse.Namespace) -> int:
    """Run a trace. Raises PlannerConfigError."""
    try:
        requests = trace_requests(args.trace, speedup=args.speedup)
    except OSError as error:
        raise PlannerConfigError(f"--trace: {file_error_text(args.trace, error)}") from None
    last_s = requests[-1].arrived_s
    # One mean distance after the last request, so that a repetition does not begin with a burst.
    period_s = last_s + last_s / max(1, len(requests) - 1)
    until_s = period_s if args.hours is None else args.hours * 3600.0
    if until_s > HOURS_MAX * 3600.0:
        hours = until_s / 3600.0
        raise PlannerConfigError(f"--hours: expected at most {HOURS_MAX:g}, got {hours:.6g}")
    found, views = [], []
    advice: list[str] = []
    for name, config in read_configurations(args):
        course = _build_course(args, config, until_s)
        least = None
        if args.least:
            least = _compute_least_gpu_hours(
                list(repeat_requests(requests, until_s, period_s)), config, course
            )
        status = DeploymentStatus(name, core_settings_of(config))
        outcome = _build_run(config, course, status).run_course(
            repeat_requests(requests, until_s, period_s), least
        )
        found.append(TraceComparison(name=name, outcome=outcome))
        views.append(make_view(status, name, least))
        advice.extend(model_advice(name, status))
    # Behind the table, which stays a configuration a line.
    table = [*outcome_table((f.name, f.outcome) for f in found), *advice]
    _print_results(found, table, args.json)
    if args.report is not None:
        title = f"Replay of {args.trace.name}"
        page = render_page(views, title)
        try:
            args.report.write_bytes(page)
        except OSError as error:
            fault = file_error_text(args.report, error, "written")
            raise PlannerConfigError(f"--report: {fault}") from None
    return 0


def _build_run(
    config: DeploymentConfig, course: ReplayCourse, status: DeploymentStatus
) -> PlannerRun:
    """Build the run of a configuration."""

    def follow(told: TickInput, effects: TickEffects) -> None:
        """Add a tick to the state."""
        status.add_tick(told, effects, None)

    deployment = _build_deployment(config, 0.0, config.warmup_trace)
    return PlannerRun(config, deployment, course, follow)


def _build_deployment(
    settings: DeploymentSettings, start_s: float, warmup_trace: str | None = None
) -> PlannedDeployment:
    """Build a deployment. Raises PlannerConfigError for a predictor that is not installed."""
    try:
        return build_deployment(settings, start_s, warmup_trace=warmup_trace)
    except KeyError as error:
        raise PlannerConfigError(f"load_predictor: {error} is not installed") from None


def core_settings_of(config: DeploymentSettings) -> DeploymentSettings:
    """Return the core's settings."""
    return DeploymentSettings(
        **{each: getattr(config, each) for each in DeploymentSettings.__struct_fields__}
    )


def _build_course(
    args: argparse.Namespace, config: DeploymentConfig, until_s: float
) -> ReplayCourse:
    """Return the course of a configuration."""
    roles = scaled_roles(config)
    fleet = FleetOptions(
        roles=roles,
        speed=dict.fromkeys(roles, args.engine),
        limits={role: engine_limits(config, role) for role in roles},
        startup_s=args.startup_secs,
        drain_s=args.drain_secs,
    )
    if args.queue_tokens is not None:
        fleet = msgspec.structs.replace(fleet, queue_tokens_max=args.queue_tokens)
    return ReplayCourse(fleet=fleet, replicas=dict.fromkeys(roles, args.replicas), until_s=until_s)


def engine_limits(config: DeploymentConfig, role: Role) -> EngineLimits:
    """Return the configured limits, else those of simulated engines."""
    given: ConfiguredLimits = (
        config.prefill_limits if role is Role.PREFILL else config.decode_limits
    )
    return EngineLimits(
        num_gpu=replica_gpus(config, role),
        max_num_batched_tokens=given.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=given.max_num_seqs or MAX_NUM_SEQS,
        max_kv_tokens=given.max_kv_tokens or MAX_KV_TOKENS,
        context_length=given.context_length,
    )


def _compute_least_gpu_hours(
    requests: list[SimulatedRequest], config: DeploymentSettings, course: ReplayCourse
) -> float:
    """Return the least GPU hours; the other role has as many replicas as the budget allows."""
    roles = course.fleet.roles
    gpus = {role: replica_gpus(config, role) for role in roles}
    least = {role: minimum_replicas(config, role) for role in roles}
    # Without a ceiling the search still needs a bound.
    budget = config.max_gpu_budget if config.max_gpu_budget >= 0 else 64
    most = {role: max(1, budget // gpus[role]) for role in roles}
    needed = find_least_replicas(
        requests, course.fleet, make_promise(config), interval_s=LEAST_INTERVAL_S, most=most
    )
    return least_gpu_hours(needed, gpus, interval_s=LEAST_INTERVAL_S, least=least)


def _parse_page_path(text: str) -> Path:
    """Validate the path of the page. Raises ValueError."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ValueError("a file in an existing directory")
    return path


def _parse_speed(text: str) -> EngineSpeed:
    """Parse four numbers of an engine. Raises ValueError."""
    read, fault = (
        finite_number(0, SECONDS_MAX),
        f"four numbers, the first at least {ITERATION_S_MIN:g}",
    )
    try:
        parts = [read(each) for each in islice(text.split(","), 5)]
    except ValueError:
        raise ValueError(fault) from None
    if len(parts) != 4 or parts[0] < ITERATION_S_MIN:
        raise ValueError(fault)
    return EngineSpeed(*parts)


def _print_results(found: Sequence[Struct], table: Iterable[str], as_json: bool) -> None:
    """Print the results as JSON or as a table."""
    if as_json:
        table = [msgspec.json.format(msgspec.json.encode(found, order="deterministic")).decode()]
    print(*table, sep="\n")

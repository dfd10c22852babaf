"""Command `select-planner profile`: measures an engine and writes its profile."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from select_service.base.command_line import (
    CommandParser,
    UsageError,
    argument_type,
    file_error_text,
    one_of_words,
    positive_number,
    whole_number,
)
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.files.atomic_file import write_whole
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.net.tls.tls_paths import ClientTlsPaths
from select_service.net.token_file import read_api_key
from select_service.net.urls import service_url_error
from select_service.planner.profile_files import ProfileFileError, read_profile
from select_service.planner.profiling.engine_probe import KV_TOKENS_MAX, EngineProbe
from select_service.planner.profiling.progress_bar import ProgressBar
from select_service.planner.profiling.sweep import (
    MeasuredBatch,
    decode_arrays,
    mean_ttft_s,
    measure_batch,
    plan_answer_tokens,
    plan_decode_points,
    prefill_arrays,
    spread_evenly,
)

LENGTH_MAX: Final = 1 << 20
"""Limit of prompt and answer, also where an engine reports more."""
REQUESTS_MAX: Final = 1024
POINTS_MAX: Final = 64
LENGTH_LEAST: Final = 100
"""Shortest prompt of a sweep; the fixed part of an iteration hides anything below."""
POINTS_LEAST: Final = 5
"""Least number of points of a performance model, by default."""
CONCURRENCIES: Final = 6
LONGER_ANSWERS: Final = 2
"""Number of repetitions of a point with twice as long answers, until they overlap."""
FILES: Final = {"prefill": "prefill_raw_data.json", "decode": "decode_raw_data.json"}
FAILED, INTERRUPTED = 1, 130


class SweepError(Exception):
    """Error of one line of a sweep that brought no profile."""


class _Options(NamedTuple):
    """Options of a sweep, completed by what the engine reports."""

    lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    answer_tokens: int
    repeats: int
    max_length: int
    max_kv_tokens: int
    parts: Sequence[str]


def profile_command(words: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    given = _build_parser().parse_arguments(words)
    out = Path(given.out)
    if fault := service_url_error(given.engine):
        raise UsageError(f"--engine: {fault}")
    parts = ("prefill", "decode") if given.parts == "both" else (given.parts,)
    for part in parts:
        # Checked before the sweep, which takes minutes.
        if (out / FILES[part]).exists():
            raise UsageError(f"{out / FILES[part]} exists: name another --out, or remove it")
    try:
        if given.token_file is not None:
            read_api_key(Path(given.token_file))
        tls = None
        if given.ca_file is not None:
            tls = ClientTls(ClientTlsPaths(Path(given.ca_file), None))
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        return asyncio.run(_sweep_engine(given, out, tls, parts))
    except KeyboardInterrupt:
        print("\ninterrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except SweepError as error:
        print(f"select-planner profile: {error}", file=sys.stderr)
        return FAILED


def _build_parser() -> CommandParser:
    """Build the command line."""
    parser = CommandParser(
        "select-planner profile",
        "Measures an engine that serves no other traffic, by completions with prompts of several "
        "lengths and concurrencies, and writes its profile for `profile_results_dir`.",
        {
            "select-planner profile --engine http://127.0.0.1:8000 --out profile": "both parts",
            "select-planner profile --engine URL --out DIR --max-concurrency 128": "a large engine",
            "select-planner profile --engine URL --out DIR --parts prefill": "an engine that only "
            "prefills",
        },
        "--engine URL --out DIR [OPTION ...]",
    )
    add = parser.add_argument
    add("--engine", required=True, metavar="URL", help="OpenAI-compatible engine")
    add("--out", required=True, metavar="DIR", help="directory for the two files")
    add("--model", metavar="NAME", help="model (default: the first of /v1/models)")
    add("--token-file", metavar="FILE", help="file with the key of the engine (default: none)")
    add("--ca-file", metavar="FILE", help="PEM file of its CAs (default: the system's)")
    parts = one_of_words("both", "prefill", "decode")
    add(
        "--parts",
        type=argument_type(parts),
        metavar=parts.metavar,
        default="both",
        help="measured parts (default both)",
    )
    for flag, low, high, default, text in (
        ("--max-length", LENGTH_LEAST, LENGTH_MAX, None, "longest prompt and answer in tokens "
         "(default: reported by the engine)"),
        ("--max-kv-tokens", 1, KV_TOKENS_MAX, None, "tokens of the KV cache (default: reported "
         "by the engine)"),
        ("--prefill-points", POINTS_LEAST, POINTS_MAX, 16, "prompt lengths of prefill"),
        ("--decode-points", 2, POINTS_MAX, 6, "prompt lengths of decode"),
        ("--max-concurrency", 1, REQUESTS_MAX, 32, "most simultaneous requests"),
        ("--answer-tokens", 16, 4096, 128, "least length of answers"),
        ("--repeats", 1, 100, 3, "prompts of each length of prefill"),
        ("--gpus", 1, 4096, 1, "GPUs of the engine"),
    ):  # fmt: skip
        shown = f"{text} (default {default})" if default is not None else text
        add(
            flag,
            type=argument_type(whole_number(low, high)),
            metavar="N",
            default=default,
            help=shown,
        )
    add(
        "--timeout-secs",
        type=argument_type(positive_number),
        metavar="SECONDS",
        default=300.0,
        help="time limit of an answer (default 300)",
    )
    return parser


async def _sweep_engine(
    given: argparse.Namespace, out: Path, tls: ClientTls | None, parts: Sequence[str]
) -> int:
    """Measure and write. Raises SweepError and UsageError."""
    probe = EngineProbe(
        given.engine,
        given.model,
        None if given.token_file is None else Path(given.token_file),
        tls,
        requests_max=given.max_concurrency,
        timeout_s=given.timeout_secs,
    )
    try:
        sweep = EngineSweep(probe, await _complete_options(given, probe, parts))
        contents = await sweep.measure()
    finally:
        await probe.close()
    _write_profile(out, contents.to_arrays(given.gpus))
    print(f"{out}: {sweep.summary()}; name it in the planner's file as profile_results_dir")
    return 0


async def _complete_options(
    given: argparse.Namespace, probe: EngineProbe, parts: Sequence[str]
) -> _Options:
    """Return the options with the engine's own limits. Raises SweepError and UsageError."""
    try:
        facts = await probe.read_facts()
    except (HttpError, *DECODE_ERRORS) as error:
        raise SweepError(f"{given.engine}/v1/models: {error}: name a running engine") from None
    if probe.model is None:
        raise SweepError(f"{given.engine} has no model: wait until it has loaded one")
    longest = given.max_length or facts.max_length
    if longest is None:
        raise UsageError("--max-length is missing: the engine does not report max_model_len")
    if facts.max_length is not None:
        longest = min(longest, facts.max_length)
    # A prompt is a list of as many numbers, and engines may report anything.
    longest = min(longest, LENGTH_MAX)
    kv = given.max_kv_tokens or facts.max_kv_tokens
    if kv is None and "decode" in parts:
        raise UsageError(
            "--max-kv-tokens is missing: the engine reports it neither in /metrics nor in "
            "/get_server_info"
        )
    prompt_max = longest - given.answer_tokens - 1
    if prompt_max < 2 * LENGTH_LEAST:
        raise UsageError(
            f"--max-length: expected at least {2 * LENGTH_LEAST + given.answer_tokens + 1} with "
            f"these answers, got {longest}"
        )
    return _Options(
        lengths=spread_evenly(LENGTH_LEAST, prompt_max, given.prefill_points),
        contexts=spread_evenly(LENGTH_LEAST, prompt_max, given.decode_points),
        concurrencies=spread_evenly(1, given.max_concurrency, CONCURRENCIES),
        answer_tokens=given.answer_tokens,
        repeats=given.repeats,
        max_length=longest,
        max_kv_tokens=kv or 0,
        parts=parts,
    )


class EngineSweep:
    """Sweep of an engine."""

    def __init__(self, probe: EngineProbe, options: _Options) -> None:
        self._probe = probe
        self.options = options
        self._points = plan_decode_points(
            options.contexts, options.concurrencies, options.answer_tokens, options.max_kv_tokens
        )
        self._ttft_s: dict[int, float] = {}
        self._batches: list[MeasuredBatch] = []
        self._skipped = 0
        steps = len(options.lengths) if "prefill" in options.parts else 0
        steps += len(self._points) if "decode" in options.parts else 0
        self._bar = ProgressBar(steps, sys.stderr)

    async def measure(self) -> "ProfileContents":
        """Measure all points. Raises SweepError with too few of them."""
        try:
            # The first request of an engine pays for compilation and graph capture.
            await self._probe.time_answers(LENGTH_LEAST, self.options.answer_tokens, 1)
            if "prefill" in self.options.parts:
                await self._measure_prefill()
            if "decode" in self.options.parts:
                await self._measure_decode()
        except HttpError as error:
            detail = error.body[:200].decode("utf-8", "replace")
            raise SweepError(f"the engine failed: {error} {detail}".rstrip()) from None
        finally:
            self._bar.finish()
        if "decode" in self.options.parts and len(self._batches) < POINTS_LEAST:
            raise SweepError(
                f"{len(self._batches)} points of decode, expected at least {POINTS_LEAST}: longer "
                "answers (--answer-tokens), more points, or a larger KV cache"
            )
        return ProfileContents(self._ttft_s, self._batches, self.options)

    def summary(self) -> str:
        """Return what was measured."""
        skipped = f", {self._skipped} without overlap" if self._skipped else ""
        return f"{len(self._ttft_s)} points of prefill, {len(self._batches)} of decode{skipped}"

    async def _measure_prefill(self) -> None:
        """Measure one prompt at a time."""
        for length in self.options.lengths:
            streams = [
                (await self._probe.time_answers(length, 1, 1))[0]
                for _ in range(self.options.repeats)
            ]
            self._ttft_s[length] = mean_ttft_s(streams)
            self._bar.add_step(f"prefill of {length}: {self._ttft_s[length] * 1000:.1f} ms")

    async def _measure_decode(self) -> None:
        """Measure simultaneous answers."""
        alone: dict[int, tuple[float, float]] = {}
        for length, requests in self._points:
            measured = await self._measure_point(length, requests, alone.get(length))
            if measured is None:
                self._skipped += 1
                self._bar.add_step(f"{requests} of {length}: answers did not overlap")
                continue
            prefill_s, batch = measured
            # The first point of a length has the fewest requests.
            alone.setdefault(length, (prefill_s, batch.itl_s))
            self._batches.append(batch)
            self._bar.add_step(f"{requests} of {length}: {batch.itl_s * 1000:.2f} ms a token")

    async def _measure_point(
        self, length: int, requests: int, lightest: tuple[float, float] | None
    ) -> tuple[float, MeasuredBatch] | None:
        """Return the time to first token and the batch; None without overlap.

        lightest: time to first token and pace of the lightest point of this length
        """
        prefill_s, itl_s = lightest or (0.0, None)
        most = self.options.max_length - length - 1
        answer = plan_answer_tokens(self.options.answer_tokens, most, requests, prefill_s, itl_s)
        for _ in range(1 + LONGER_ANSWERS):
            streams = await self._probe.time_answers(length, answer, requests)
            batch = measure_batch(length, streams)
            if batch is not None:
                return mean_ttft_s(streams), batch
            # Engines prefer prompts to running answers, so a first guess may be too short.
            if answer >= most:
                return None
            answer = min(most, 2 * answer)
        return None


class ProfileContents(NamedTuple):
    """Measured values."""

    ttft_s: dict[int, float]
    batches: list[MeasuredBatch]
    options: _Options

    def to_arrays(self, gpus: int) -> dict[str, dict[str, object]]:
        """Return the arrays by file name."""
        found = {}
        if "prefill" in self.options.parts:
            found[FILES["prefill"]] = prefill_arrays(self.ttft_s, gpus)
        if "decode" in self.options.parts:
            kv = self.options.max_kv_tokens
            found[FILES["decode"]] = decode_arrays(self.batches, kv, gpus)
        return found


def _write_profile(out: Path, contents: dict[str, dict[str, object]]) -> None:
    """Write the files and read them as the planner does. Raises SweepError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, arrays in contents.items():
            write_whole(out / name, msgspec.json.format(msgspec.json.encode(arrays), indent=1))
        # A profile that the planner would refuse later is a failure now.
        read_profile(str(out))
    except OSError as error:
        raise SweepError(file_error_text(out, error, "written")) from None
    except ProfileFileError as error:
        raise SweepError(f"the engine's times make no profile: {error}") from None

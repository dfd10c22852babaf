"""Quality of policies: the core in virtual time, next to simple routers.

Runs that --json contains are not repeated: a stopped session continues, and a new policy costs
only its own runs.
"""

import argparse
import sys
import time
from itertools import product
from pathlib import Path

from scripts.bench.quality import named_routers, peer_rules, quality_report, quality_runs
from scripts.bench.quality.named_routers import router_names
from scripts.bench.quality.quality_figures import Results, RunKey
from scripts.bench.quality.situations import CHOOSER_SETS, SITUATIONS

LOADS, SEEDS = (0.6, 0.85), (1, 2, 3)
BASE = "reference"
CHOOSERS = [
    BASE,
    "round robin",
    "least requests",
    "prefix tree",
    "reference x10",
    "least_work",
    "work",
]


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    options.choosers = CHOOSER_SETS.get(":".join(options.choosers), options.choosers)
    if options.base not in options.choosers:
        parser.error(f"--base {options.base} is none of --choosers")
    cases = quality_runs.make_cases(
        options.mooncake, options.azure, options.requests, options.trace
    )
    wanted = options.workloads or [name for name in cases if name in quality_runs.CAPACITY]
    if options.rates:
        for name in wanted:
            print(name, f"{quality_runs.measure_rate(name, cases[name], 99):.1f}", flush=True)
        return
    if options.capacity:
        _measure({name: cases[name] for name in wanted})
        return
    results = quality_report.from_json(options.json) if options.json else {}
    cases_of_seed = product(options.seeds, wanted, options.loads, options.choosers)
    keys = [RunKey(name, load, seed, chooser) for seed, name, load, chooser in cases_of_seed]
    for key in keys:
        if key not in results and not options.show:
            _run(key, cases[key.workload], results)
            if options.json:
                _write(options.json, quality_report.to_json(results))
    results = {key: results[key] for key in keys if key in results}
    text = quality_report.render_markdown(results, options.base)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.csv:
        options.csv.write_text(quality_report.render_csv(results))
    if options.svg:
        options.svg.write_text(quality_report.render_svg(results, options.base))


def _write(path: Path, text: str) -> None:
    """Replace the file at once, so that the file is complete after any stop."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def _run(key: RunKey, case: quality_runs.WorkloadCase, results: Results) -> None:
    begin = time.process_time()
    results[key] = found = quality_runs.run_cell(key, case)
    shown = f"TTFT {found.ttft_mean:.3f} s, p99 {found.ttft_p99:.2f} s"
    print(
        f"{key}: {shown}; {time.process_time() - begin:.1f} s of CPU", file=sys.stderr, flush=True
    )


def _measure(cases: dict[str, quality_runs.WorkloadCase]) -> None:
    for name, case in cases.items():
        rates = {
            live: quality_runs.measure_capacity(case, live, seed=99) for live in quality_runs.CLOSED
        }
        shown = ", ".join(f"{rate:.1f} with {live}" for live, rate in rates.items())
        print(f"{name}: {shown} requests per rank", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.quality",
        description=__doc__,
        epilog=f"Choosers: {', '.join(router_names())}.\nROUTER in SITUATION: "
        f"{'; '.join(SITUATIONS)}.\n\n{named_routers.__doc__}\n"
        f"{peer_rules.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--mooncake", type=Path, metavar="FILE", help="conversation trace (jsonl, may be gzipped)")
    add("--azure", type=Path, metavar="FILE", help="conversation trace (csv, may be gzipped)")
    trace = "workload `trace`, load 1 is its own rate: Mooncake, Bailian or Weka"
    add("--trace", type=Path, metavar="FILE", help=trace)
    add("--workloads", type=_texts, metavar="A:B", help="some of them; all")
    add("--loads", type=_numbers, default=LOADS, metavar="X:Y", help="shares of capacity; 0.6:0.85")
    add("--seeds", type=_integers, default=SEEDS, metavar="I:J", help="1:2:3")
    sets = ", ".join(f"'{name}'" for name in CHOOSER_SETS)
    add("--choosers", type=_texts, default=CHOOSERS, metavar="A:B", help=f"or a set: {sets}")
    add("--base", default=BASE, metavar="CHOOSER", help="what ratios are to; reference")
    add("--requests", type=int, metavar="N", help="of a run, if not those of the workload")
    add("--capacity", action="store_true", help="measure what loads are shares of, nothing else")
    add("--rates", action="store_true", help="measure the requests/s that meet the objective")
    add("--show", action="store_true", help="run nothing, show what --json has")
    add("--json", type=Path, metavar="FILE", help="results, read and written")
    add("--markdown", type=Path, metavar="FILE", help="tables, which are printed anyway")
    add("--csv", type=Path, metavar="FILE", help="means over the seeds by cell and chooser")
    add("--svg", type=Path, metavar="FILE", help="a picture of the cells")
    return parser


def _texts(text: str) -> list[str]:
    return text.split(":")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(":")))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(":")))


if __name__ == "__main__":
    main()

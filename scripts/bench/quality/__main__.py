"""How well policies choose: the core in virtual time, next to routers that know less.

    python -m scripts.bench.quality --json quality.json --markdown quality.md --svg quality.svg
        [--mooncake FILE] [--azure FILE] [--workloads A:B] [--loads 0.6:0.85] [--seeds 1:2:3]
        [--choosers "reference:round robin"] [--requests N]

Runs that --json has already are not repeated, so that it can go on where it was stopped, and a new
policy costs only its own runs; --show runs nothing, and shows what there is.  --capacity measures
what loads are shares of.
"""

import argparse
import sys
import time
from itertools import product
from pathlib import Path

from scripts.bench.quality import cells, report
from scripts.bench.quality.figures import Key, Results
from scripts.bench.quality.named_choosers import BLIND, names

LOADS, SEEDS = (0.6, 0.85), (1, 2, 3)
BASE = "reference"


def main() -> None:
    options = _parser().parse_args()
    cases = cells.cases(options.mooncake, options.azure, options.requests)
    wanted = options.workloads or list(cases)
    if options.capacity:
        _measure({name: cases[name] for name in wanted})
        return
    results = report.loaded(options.json) if options.json else {}
    cases_of_seed = product(options.seeds, wanted, options.loads, options.choosers)
    keys = [Key(name, load, seed, chooser) for seed, name, load, chooser in cases_of_seed]
    for key in keys:
        if key not in results and not options.show:
            _run(key, cases[key.workload], results)
            if options.json:
                _write(options.json, report.saved(results))
    results = {key: results[key] for key in keys if key in results}
    text = report.markdown(results, options.base)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.svg:
        options.svg.write_text(report.picture(results, options.base))


def _write(path: Path, text: str) -> None:
    """Whenever it is stopped, the file is whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def _run(key: Key, case: cells.Case, results: Results) -> None:
    begin = time.process_time()
    results[key] = found = cells.run(key, case)
    shown = f"TTFT {found.ttft_mean:.3f} s, p99 {found.ttft_p99:.2f} s"
    print(
        f"{key}: {shown}; {time.process_time() - begin:.1f} s of CPU", file=sys.stderr, flush=True
    )


def _measure(cases: dict[str, cells.Case]) -> None:
    for name, case in cases.items():
        rates = {live: cells.capacity(case, live, seed=99) for live in cells.CLOSED}
        shown = ", ".join(f"{rate:.1f} with {live}" for live, rate in rates.items())
        print(f"{name}: {shown} requests per rank", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--azure", type=Path)
    parser.add_argument("--workloads", type=lambda text: text.split(":"))
    parser.add_argument("--loads", type=_numbers, default=LOADS)
    parser.add_argument(
        "--seeds", type=lambda text: tuple(map(int, text.split(":"))), default=SEEDS
    )
    parser.add_argument(
        "--choosers",
        type=lambda text: text.split(":"),
        default=[BASE, "reference x10", *BLIND],
        help=f"some of: {', '.join(names())}",
    )
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--capacity", action="store_true")
    parser.add_argument("--show", action="store_true")
    for name in ("json", "markdown", "svg"):
        parser.add_argument(f"--{name}", type=Path)
    return parser


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(":")))


if __name__ == "__main__":
    main()

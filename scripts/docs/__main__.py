"""Write the generated pages: `python -m scripts.docs`; `--check` compares them instead.

The exit status of `--check` is 1 when a page differs from the code.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.docs.pages import PAGES

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare every page and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the pages, write nothing")
    only_check = parser.parse_args(arguments).check
    outdated = []
    for name, generate in PAGES.items():
        path, text = REFERENCE / name, generate()
        if path.exists() and path.read_text() == text:
            continue
        outdated.append(name)
        if not only_check:
            path.write_text(text)
    verb = "outdated" if only_check else "written"
    print("\n".join(f"{verb}: {name}" for name in outdated) or "all pages are current")
    return int(only_check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())

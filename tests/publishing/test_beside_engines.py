"""Tests that scripts/beside_engines reports the result of a resolver, replaced by a fake here."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.publishing.checkout import copy_scripts, mark_current

UV = """\
#!{python}
import sys
asked = sys.stdin.read().strip()
mode = {mode!r}
if asked == "pip":
    sys.exit("error: no registry" if mode == "unreachable" else 0)
assert ["--extra", "client"] == sys.argv[sys.argv.index("--extra"):][:2]
if mode == "older" and asked.startswith("vllm"):
    asked = "vllm==0.6.0"
if mode == "no solution" and asked.startswith("sglang"):
    sys.exit("error: No solution found")
print("httpx==0.28.1", asked.replace("[llm]", ""), "xxhash==4.1.0", sep="\\n")
"""


def run_with(folder: Path, mode: str) -> subprocess.CompletedProcess[str]:
    """Return the output of the script in a checkout with a fake uv in the environment."""
    copy_scripts(folder, ("beside_engines", "environment.sh"))
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    uv = folder / ".venv/bin/uv"
    uv.write_text(UV.format(python=sys.executable, mode=mode))
    uv.chmod(0o755)
    mark_current(folder)
    command = [folder / "scripts" / "beside_engines"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("mode", "status", "said"),
    [
        ("resolves", 0, "client beside ray[llm]==2.60.0: resolved"),
        ("unreachable", 0, "scripts/beside_engines: skipped, no package registry answers"),
        ("older", 1, "  vllm==0.33.0: another version was resolved"),
        ("no solution", 1, "client cannot be installed beside sglang==0.5.23:"),
    ],
)
def test_the_result_of_the_resolver_is_reported(
    tmp_path: Path, mode: str, status: int, said: str
) -> None:
    done = run_with(tmp_path, mode)
    assert said in done.stdout + done.stderr
    assert done.returncode == status
    assert done.stdout.count(": resolved") == {"resolves": 3, "unreachable": 0}.get(mode, 2)

"""Tests of a TypeScript client, generated from the document of a service, against that service."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builders.running import Running

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "typescript"
RUN_S_MAX = 240.0


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the script.

    path: search path of programs; None means the usual path
    """
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, SCRIPT, *arguments],
        env=None if path is None else {"PATH": path},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


@pytest.fixture
def fetched() -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not there")
    lock = ROOT / "tests" / "typescript" / "package-lock.json"
    there = ROOT / ".tools" / "typescript" / "fetched"
    if not there.exists() or there.read_bytes() != lock.read_bytes():
        pytest.skip("its packages are not there: scripts/typescript fetches them")


@pytest.mark.usefixtures("fetched")
def test_the_generated_client_works_and_its_types_are_the_services() -> None:
    with Running("--threads", "1") as service:
        done = run(f"http://127.0.0.1:{service.port}")
        left = service.call("GET", "/reservations").body["total"]
    assert (done.returncode, done.stdout, left) == (0, "ok\n", 0), done.stdout + done.stderr


@pytest.mark.usefixtures("fetched")
def test_a_service_that_is_not_there_is_a_failure() -> None:
    done = run("http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.endswith("no client can be made of http://127.0.0.1:9/openapi.json\n")


def test_the_script_names_missing_programs(tmp_path: Path) -> None:
    needed = shutil.which("dirname")
    assert needed is not None
    (tmp_path / "dirname").symlink_to(needed)
    done = run("http://127.0.0.1:9", path=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith("needs node and npm; this machine has no node\n")

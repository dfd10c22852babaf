"""Test that the README's section on Ray runs, in a separate program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.test_readme import README, worker
from tests.ray.clusters import cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

USE = """
import httpx
for url in find():
    httpx.post(url + "/workers", json={worker}).raise_for_status()
print(ray.get(Frontend.remote().generate.remote(list(range(64)))))
print([httpx.get(url + "/reservations").json()["total"] for url in find()])
"""


def test_the_section_on_ray_runs_as_written(tmp_path: Path) -> None:
    (section,) = re.findall(r"## In Ray\n+```python\n(.*?)```", README, re.DOTALL)
    program = tmp_path / "program.py"
    program.write_text(section + USE.format(worker=worker()))
    with cluster((4,)) as nodes:
        done = subprocess.run(
            [sys.executable, program],
            env={**os.environ, "RAY_ADDRESS": nodes.address},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.splitlines()[-2:] == ["http://vllm-0:8000", "[0, 0]"], done.stderr

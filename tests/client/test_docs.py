"""Tests that the programs of docs/reference/client.md run against the service."""

import asyncio
import re
from pathlib import Path

import pytest

from select_service.client.client_options import ClientSettings, Options
from tests.builders import worker_body
from tests.builders.in_thread import InThread

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def service():
    with InThread("--health-checks", "on") as service:
        for worker_id in (1, 2):
            body = worker_body(worker_id, model_name="qwen", block_size=16)
            assert service.call("POST", "/workers", body).status == 201
        yield service


async def generated(endpoint, dp_rank, token_ids):
    assert endpoint.startswith("http://w")
    assert dp_rank == 0
    for _ in range(20):
        yield token_ids[:2]


async def generating(endpoint):
    assert endpoint.startswith("http://w")
    await asyncio.sleep(0.01)


@pytest.mark.process
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_page_runs(service, number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = re.sub(
        r"http://selector-[ab]:8092", f"http://127.0.0.1:{service.port}", PROGRAMS[number]
    )
    exec(
        compile(text, f"docs/reference/client.md:{number}", "exec"),
        globals() | {"__name__": "__main__"},
    )
    said = capsys.readouterr().out
    assert said.count("\n") == PROGRAMS[number].count("print(") + (
        "for turn in" in PROGRAMS[number]
    )
    assert service.call("GET", "/reservations").body["total"] == 0


def test_every_option_is_in_the_table_with_its_default():
    assert set(Options.__annotations__) == set(ClientSettings.__dataclass_fields__)
    for name in Options.__annotations__:
        assert re.search(rf"^\| (?:`\w+`, )?`{name}`", PAGE, re.MULTILINE), name
    assert f"| {ClientSettings().deadline_s:g} |" in PAGE

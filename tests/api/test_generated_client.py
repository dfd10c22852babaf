"""A client that openapi-python-client makes of the document can be used as it comes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from select_service.api.application import ApiApplication
from select_service.api.documentation import ENDPOINT_GROUPS
from select_service.api.openapi.document import build_document
from tests.builders.in_process import Api

PACKAGE = "generated_select_client"
GENERATOR = Path(sys.executable).with_name("openapi-python-client")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The generated package, on the path of this process."""
    folder = tmp_path_factory.mktemp("generated")
    described = folder / "openapi.json"
    described.write_text(json.dumps(build_document(ENDPOINT_GROUPS, "1.0.0")))
    settings = folder / "settings.yml"
    settings.write_text("post_hooks: []\n")
    files = ["--path", described, "--config", settings, "--output-path", folder / PACKAGE]
    made = subprocess.run(
        [GENERATOR, "generate", *files, "--meta", "none", "--fail-on-warning"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(folder))
    yield PACKAGE
    sys.path.remove(str(folder))


class Client:
    """Calls operations of the generated package; answers are its models."""

    def __init__(self, package, api):
        self._package, self._api = package, api
        transport = httpx.ASGITransport(ApiApplication(api.service))
        http = httpx.AsyncClient(transport=transport, base_url="http://service")
        client = importlib.import_module(f"{package}.client").Client(base_url="http://service")
        self._client = client.set_async_httpx_client(http)
        self._models = importlib.import_module(f"{package}.models")

    def model(self, name, **fields):
        return getattr(self._models, name).from_dict(fields)

    def call(self, tag, operation, *arguments, **fields):
        module = importlib.import_module(f"{self._package}.api.{tag}.{operation}")
        work = module.asyncio(*arguments, client=self._client, **fields)
        return self._api.wait_for(work)


@pytest.fixture
def client(package):
    with Api() as api:
        yield Client(package, api)


def test_the_generated_client_registers_selects_and_frees(client):
    worker = client.model("WorkerRegistration", worker_id=1, endpoint="http://w", block_size=4)
    assert client.call("workers", "register_worker", body=worker).lifecycle == "schedulable"
    wanted = client.model("SelectAndReserveRequest", token_ids=[1, 2, 3, 4, 5])
    chosen = client.call("selection", "select_and_reserve", body=wanted)
    assert (chosen.worker_id, chosen.endpoint, chosen.overlap.dp["0"]) == (1, "http://w", 0)
    held = client.call("reservations", "get_reservation", chosen.reservation_id)
    assert (held.state, held.prefill_tokens) == ("prefill", 5)
    assert client.call("reservations", "prefill_complete", chosen.reservation_id).status == "ok"
    assert client.call("reservations", "free_reservation", chosen.reservation_id).status == "ok"
    assert client.call("reservations", "list_reservations", worker_id=1).total == 0


def test_the_generated_client_reads_refusals_and_warnings(client):
    refused = client.call("workers", "delete_worker", 7)
    assert (refused.code, refused.error) == ("not_found", "worker 7 not found")
    misspelt = client.model("WorkerRegistration", worker_id=1, block_sise=4)
    answer = client.call("workers", "register_worker", body=misspelt)
    assert answer.warnings == ["unknown field `block_sise`: did you mean `block_size`?"]


def test_images_are_part_of_the_generated_client(client):
    mm_object = {"mm_hash": 5, "offsets": [[0, 3]]}
    infos = [{"mm_objects": [mm_object]}, None]
    wanted = client.model("SelectRequest", token_ids=[1, 2, 3, 4], block_mm_infos=infos)
    assert wanted.to_dict()["block_mm_infos"] == infos

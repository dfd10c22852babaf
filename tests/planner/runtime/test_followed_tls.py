"""Tests of selectors that require a certificate, also after changes of its files."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from select_service.adapters.reload import file_watch
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.planner.__main__ import main
from select_service.planner.connectors.selector_client import SelectorClients
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.runtime.selector_source import SelectorSource
from select_service.planner.runtime.watched_tls import WatchedTls, client_files
from tests.builders import worker_body
from tests.builders.certificates import Issued, authority, trusting_context
from tests.builders.polling import eventually_on_loop
from tests.builders.running import Reached
from tests.builders.tls_service import TlsService, replace_pair

WRONG = "TLS files are invalid; keeping the previous ones"


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "CHECK_INTERVAL_S", 0.02)


@pytest.fixture(scope="module")
def strict():
    """Yield a selector that refuses clients without a certificate."""
    with TlsService("--tls-client-ca", str(authority().file)) as service:
        service.trust = trusting_context(authority().file, authority().issue())
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        yield service


@pytest.fixture
def own(tmp_path: Path) -> Issued:
    """Return a valid certificate of the planner."""
    place = Issued(tmp_path / "tls.crt", tmp_path / "tls.key")
    replace_pair(authority().issue(), place)
    return place


def url_of(service: Reached) -> str:
    return f"https://localhost:{service.port}"


@contextlib.asynccontextmanager
async def followed_tls(own: Issued) -> AsyncIterator[ClientTls]:
    async with WatchedTls() as known:
        files = client_files(str(authority().file), str(own.certificate), str(own.key))
        tls = known.tls_for(files)
        assert tls is not None
        assert known.tls_for(files) is tls
        yield tls


async def is_let_in(http: PlannerHttpClient, service: Reached) -> bool:
    try:
        return await http.get(f"{url_of(service)}/health") == b'{"status":"ok"}'
    except HttpError:
        return False


async def test_observations_and_loads_are_requested_with_a_certificate(strict, own):
    async def read_selector(tls: ClientTls | None) -> tuple[int, dict[str, str]]:
        """Return the number of workers with loads, and the faults of the source."""
        selectors = SelectorClients([url_of(strict)], "m", "default", None, tls)
        async with PlannerHttpClient(tls) as http:
            source = SelectorSource([url_of(strict)], http, "m", "default", lambda: 0.0)
            await source.read_observations(60.0, ttft_s=1.0, itl_s=1.0)
            loads = await selectors.read_loads()
            await selectors.close()
            return len(loads or ()), source.faults

    async with followed_tls(own) as tls:
        assert await read_selector(tls) == (1, {})
        without = WatchedTls().tls_for(client_files(None))
        assert without is None
        loads, faults = await read_selector(without)
        assert loads == 0
        assert "certificate" in faults[url_of(strict)].lower()


async def test_a_certificate_that_changes_is_shown_from_then_on(strict, own):
    good = authority().issue()
    replace_pair(authority("stranger").issue(), own)
    async with followed_tls(own) as tls, PlannerHttpClient(tls) as http:
        assert not await is_let_in(http, strict)
        replace_pair(good, own)
        await eventually_on_loop(lambda: tls.tls_report().readings == 1)
        assert await is_let_in(http, strict)
        replace_pair(authority("stranger").issue(), own)
        await eventually_on_loop(lambda: tls.tls_report().readings == 2)
        assert not await is_let_in(http, strict), "the connection before is not used"


async def test_an_invalid_pair_changes_nothing_and_is_logged_once(strict, own, caplog, monkeypatch):
    looked, marks_of = [], file_watch.file_marks
    monkeypatch.setattr(
        file_watch, "file_marks", lambda path: looked.append(path) or marks_of(path)
    )
    async with followed_tls(own) as tls:
        own.certificate.write_bytes(authority().issue().certificate.read_bytes())
        await eventually_on_loop(lambda: tls.tls_report().is_stale)
        before = len(looked)
        await eventually_on_loop(lambda: len(looked) > before + 12)
        async with PlannerHttpClient(tls) as http:
            assert await is_let_in(http, strict)
        (told,) = [record for record in caplog.records if record.message == WRONG]
        assert "does not match the certificate" in told.__dict__["fields"]["error"]
        replace_pair(authority().issue(), own)
        await eventually_on_loop(lambda: tls.tls_report().readings == 1)
        assert not tls.tls_report().is_stale


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"client_cert_file": "tls.crt", "client_key_file": "words"},
            "`tls.crt` with the key `words`: no private key",
        ),
        ({"client_cert_file": "tls.crt"}, "given together"),
    ],
)
def test_invalid_files_stop_the_start_with_one_line(
    tmp_path, own, monkeypatch, capsys, given, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text("two words")
    deployment = {"name": "a", "model_name": "m", "mode": "agg"}
    document = {"selectors": ["https://localhost:1"], "deployments": [deployment], **given}
    (tmp_path / "planner.yaml").write_text(yaml.safe_dump(document))
    assert main(["--config", "planner.yaml", "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_ca_of_prometheus_is_judged_at_the_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prometheus = {"url": "https://localhost:1", "ca_file": "missing.pem"}
    deployment = {"name": "a", "model_name": "m", "mode": "agg", "prometheus": prometheus}
    (tmp_path / "planner.yaml").write_text(yaml.safe_dump({"deployments": [deployment]}))
    assert main(["--config", "planner.yaml", "--port", "0"]) == 2
    said = "deployment `a`: prometheus: ca_file: `missing.pem` cannot be read"
    assert said in capsys.readouterr().err

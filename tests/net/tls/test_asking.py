"""Tests of this process as an https client: trusted authorities and own certificates."""

import asyncio
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from indexer.sockets.dns_resolver import Resolver
from select_service.__main__ import main
from select_service.adapters.http_get import HttpClient
from select_service.adapters.probe_http import TimedHttpClient
from select_service.cli.doctor import doctor_command
from select_service.cli.explain import explain_command
from select_service.cli.inspect import inspect_command
from select_service.client import AsyncSelector, SelectorError
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.net.tls.tls_paths import CertificatePair, ClientTlsPaths
from select_service.planner.connectors.selector_client import SelectorClients
from tests.builders import worker_body
from tests.builders.certificates import authority, trusting_context
from tests.builders.in_thread import InThread
from tests.builders.keys import entry, keys_file, secret
from tests.builders.polling import PATIENCE_S
from tests.builders.tls_service import TlsService
from tests.builders.waiting_clients import PROMPT


@pytest.fixture(scope="module")
def service():
    with TlsService() as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        assert service.call("POST", "/select", PROMPT).status == 200
        yield service


@pytest.fixture(scope="module")
def strict():
    """Return a service that requires a certificate of clients, too."""
    with TlsService("--tls-client-ca", str(authority().file)) as service:
        service.trust = trusting_context(authority().file, authority().issue())
        yield service


def url_of(service, path=""):
    return f"https://localhost:{service.port}{path}"


def tls(name="ca", own=None):
    return ClientTls(
        ClientTlsPaths(authority(name).file, None if own is None else CertificatePair(*own))
    )


def body(client_tls, url):
    async def ask():
        http = HttpClient(Resolver(), tls=client_tls)
        try:
            return await http.get_body(url, accept="*/*", bytes_max=1000, timeout_s=PATIENCE_S)
        finally:
            await http.close()

    return asyncio.run(ask())


def posted(client_tls, url):
    content = json.dumps(PROMPT).encode()
    return asyncio.run(
        TimedHttpClient(Resolver(), client_tls).post(
            url, content, {}, bytes_max=10**5, timeout_s=PATIENCE_S
        )
    )


def test_pages_come_only_from_trusted_servers(service):
    assert body(tls(), url_of(service, "/health")) == b'{"status":"ok"}'
    for wrong in (None, tls("stranger")):
        with pytest.raises(HttpError, match="certificate is not trusted"):
            body(wrong, url_of(service, "/health"))


def test_posts_go_only_to_trusted_servers(service):
    assert posted(tls(), url_of(service, "/select")).status == 200
    for wrong in (None, tls("stranger")):
        with pytest.raises(HttpError, match="certificate is not trusted"):
            posted(wrong, url_of(service, "/select"))


def test_a_certificate_is_presented_on_request(strict):
    mine = tls(own=authority().issue())
    assert body(mine, url_of(strict, "/health")) == b'{"status":"ok"}'
    assert posted(mine, url_of(strict, "/select")).status == 503  # there is no worker
    for wrong in (tls(), tls(own=authority("stranger").issue())):
        with pytest.raises(HttpError):
            body(wrong, url_of(strict, "/health"))
        with pytest.raises(HttpError):
            posted(wrong, url_of(strict, "/select"))


@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
def test_the_python_client_trusts_the_given_context(service, transport):
    async def ask(name, deadline_s):
        options = {"transport": transport, "ssl_context": trusting_context(authority(name).file)}
        async with AsyncSelector([url_of(service)], deadline_s=deadline_s, **options) as selector:
            return await selector.workers()

    assert [record.worker_id for record in asyncio.run(ask("ca", PATIENCE_S))] == [1]
    with pytest.raises(SelectorError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask("stranger", 2.0))


def test_the_planner_reads_loads_only_from_trusted_selectors(service):
    def loads(client_tls):
        async def ask():
            selectors = SelectorClients([url_of(service)], "m", "default", None, client_tls)
            found = await selectors.read_loads()
            await selectors.close()
            return found

        return asyncio.run(ask())

    assert [load.worker_id for load in loads(tls())] == [1]
    assert loads(None) is None


def test_explain_calls_with_a_key_and_a_certificate(tmp_path, capsys):
    keys = keys_file(tmp_path, entry("web", "caller"))
    key_file = tmp_path / "key"
    key_file.write_text(secret("web") + "\n")
    flags = ("--tls-client-ca", str(authority().file), "--api-keys-file", str(keys))
    own = authority().issue()
    with TlsService(*flags) as service:
        shown = ("--tls-client-cert", str(own.certificate), "--tls-client-key", str(own.key))
        trusted = ("--url", url_of(service), "--tls-ca", str(authority().file), *shown)
        assert explain_command([*trusted, "--api-key-file", str(key_file)]) == 0
        assert "decision" in capsys.readouterr().out
        assert explain_command(trusted) == 1
        assert "API key required: give --api-key-file FILE" in capsys.readouterr().err
        assert explain_command(["--url", url_of(service)]) == 1
        assert "certificate is not trusted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--api-key-file", "missing"), "`missing` cannot be read: No such file"),
        (("--api-key-file", "words"), "`words` does not contain a key: expected a single word"),
        (("--tls-ca", "words"), "`words`: no PEM certificate in the file"),
        (("--tls-client-cert", "words"), "belong together: give both"),
    ],
)
def test_commands_report_faults_of_keys_and_certificates(
    tmp_path, monkeypatch, capsys, flags, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text("two words")
    engine = "http://127.0.0.1:1"
    for words in (["explain", *flags], ["inspect", engine, *flags], ["doctor", *flags]):
        assert main(words) == 2
        assert said in capsys.readouterr().err


@contextlib.contextmanager
def answering(status, location=""):
    """Yield the port of a plain HTTP server and the headers of received requests."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            came.append(dict(self.headers))
            self.send_response(status)
            self.send_header("location", location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Log nothing to standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port, came
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", [explain_command, doctor_command])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_key_does_not_follow_a_redirect(tmp_path, capsys, command, status):
    key_file = tmp_path / "key"
    key_file.write_text("ssk_secret")
    with (
        answering(200) as (elsewhere, there),
        answering(status, f"http://127.0.0.1:{elsewhere}/take") as (port, here),
    ):
        url = f"http://127.0.0.1:{port}"
        assert command(["--url", url, "--api-key-file", str(key_file)]) != 0
    assert [headers["authorization"] for headers in here] == ["Bearer ssk_secret"]
    assert there == []
    assert f"HTTP status {status}" in capsys.readouterr().err


def test_commands_call_over_http_alone(capsys):
    for command in ("explain", "doctor"):
        assert main([command, "--url", "file:///etc"]) == 2
        assert "it does not begin with http:// or https://" in capsys.readouterr().err


def test_doctor_calls_with_a_key_and_a_certificate(tmp_path, capsys):
    keys = keys_file(tmp_path, entry("web", "operator"))
    key_file = tmp_path / "key"
    key_file.write_text(secret("web"))
    flags = ("--tls-client-ca", str(authority().file), "--api-keys-file", str(keys))
    own = authority().issue()
    with TlsService(*flags) as service:
        shown = ("--tls-client-cert", str(own.certificate), "--tls-client-key", str(own.key))
        trusted = ("--url", url_of(service), "--tls-ca", str(authority().file), *shown)
        assert doctor_command([*trusted, "--api-key-file", str(key_file)]) in (0, 1)
        assert "0 workers examined" in capsys.readouterr().out
        assert doctor_command(trusted) == 2
        assert "API key required: give --api-key-file FILE" in capsys.readouterr().err
        assert doctor_command(["--url", url_of(service)]) == 2
        assert "certificate is not trusted" in capsys.readouterr().err


@pytest.mark.parametrize("believes", [True, False])
def test_the_prompt_of_doctor_goes_only_to_trusted_engines(service, believes):
    """The engine is a service here, which has no route for prompts."""
    flags = ("--tls-ca", str(authority().file)) if believes else ()
    with InThread(*flags) as asks:
        worker = worker_body(1, endpoint=url_of(service))
        assert asks.call("POST", "/workers", worker).status == 201
        found = asks.call("GET", "/doctor?worker_id=1&probe=true").body["findings"]
        texts = " ".join(each["text"] for each in found if "worker_id" in each)
        assert ("HTTP status 404" in texts) == believes
        assert ("is not trusted" in texts) == (not believes)


def test_inspect_calls_over_https_with_a_key(tmp_path, capsys):
    """A selector has no metrics of an engine, so an answer is enough here."""
    keys = keys_file(tmp_path, entry("web", "operator"))
    key_file = tmp_path / "key"
    key_file.write_text(secret("web"))
    with TlsService("--api-keys-file", str(keys)) as service:
        asked = (url_of(service), "--tls-ca", str(authority().file))
        inspect_command([*asked, "--api-key-file", str(key_file)])
        assert "neither vLLM nor SGLang" in capsys.readouterr().err
        assert inspect_command(asked) == 1
        assert "status 404" in capsys.readouterr().err  # /metrics is refused, too

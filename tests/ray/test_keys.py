"""Tests of selectors with API keys and https, and of the programs of Ray that call them."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest
import ray

from select_service.client.route_table import SELECT_AND_RESERVE
from select_service.net.http_client.http_error import HttpError
from select_service.ray import Follower, Seen, deploy, find
from select_service.ray.child_process import serves_tls
from select_service.ray.credentials import Credentials
from select_service.ray.selector_client import SingleSelector
from select_service.ray.worker_sources import make_registration
from select_service.schemas.selection import SelectAndReserveRequest
from tests.builders.certificates import Authority
from tests.builders.keys import entry, keys_file, secret
from tests.builders.polling import eventually
from tests.ray.clusters import FLAGS, cluster, kill_selector, port, service_pids

pytestmark = pytest.mark.process
ENVIRONMENT = {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}


def all_know(urls, credentials, worker_ids, total):
    for url in urls:
        try:
            with SingleSelector(url, credentials) as selector:
                known = {each.worker_id for each in selector.workers()}
                if known != worker_ids or selector.reservations(limit=1).total != total:
                    return False
        except HttpError:  # the selector does not answer now
            return False
    return True


@pytest.fixture
def files(tmp_path):
    """Return the flags of a service and the credentials of the fleet."""
    path = keys_file(tmp_path, entry("fleet", "caller", "operator", "replica"))
    key = tmp_path / "fleet.key"
    key.write_text(secret("fleet") + "\n")
    authority = Authority(tmp_path, "ca")
    address = ray.util.get_node_ip_address()
    issued = authority.issue(names=f"DNS:localhost,IP:127.0.0.1,IP:{address}")
    flags = ("--api-keys-file", str(path), "--tls-cert", str(issued.certificate))
    flags += ("--tls-key", str(issued.key))
    return flags, Credentials(str(key), str(authority.file))


@pytest.mark.slow
def test_selectors_with_keys_and_tls_are_found_filled_and_take_from_each_other(files):
    flags, credentials = files
    with cluster((4,)):
        first = port()
        given = {"flags": (*FLAGS, *flags), "environment": ENVIRONMENT, **credentials._asdict()}
        urls = deploy(2, port=first, **given)
        assert urls == find()
        assert all(url.startswith("https://") for url in urls)
        assert (
            httpx.get(urls[0] + "/workers", verify=credentials.client_tls().context).status_code
            == 401
        )
        worker = make_registration(
            {"worker_id": 7, "model_name": "m", "endpoint": "http://e", "block_size": 16}
        )
        follower = Follower(lambda: Seen([worker], True), find, **credentials._asdict())
        eventually(lambda: all_know(urls, credentials, {7}, 0))
        with SingleSelector(urls[0], credentials) as selector:
            selector.call(
                SELECT_AND_RESERVE,
                SelectAndReserveRequest(
                    model_name="m", reservation_id="r", token_ids=list(range(64))
                ),
            )
        eventually(lambda: all_know(urls, credentials, {7}, 1))
        follower.close(remove=False)
        former = service_pids(first)
        kill_selector(1)
        eventually(lambda: service_pids(first).get(first + 2) not in (None, former[first + 2]))
        eventually(lambda: all_know(urls, credentials, {7}, 1))


@pytest.mark.parametrize(
    ("flags", "environment", "is_tls"),
    [
        ((), {}, False),
        (("--tls-cert", "c.pem"), {}, True),
        (("--tls-cert=c.pem",), {}, True),
        (("--tls-ca", "c.pem"), {"SELECT_SERVICE_TLS_CERT": ""}, False),
        ((), {"SELECT_SERVICE_TLS_CERT": "c.pem"}, True),
    ],
)
def test_urls_are_https_where_the_service_shows_a_certificate(flags, environment, is_tls):
    assert serves_tls(flags, environment) == is_tls


class Seeing(BaseHTTPRequestHandler):
    """HTTP handler that records the received credentials."""

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("authorization"))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_a_new_key_counts_for_the_next_call_and_one_that_is_gone_fails_it(tmp_path):
    file = tmp_path / "key"
    with ThreadingHTTPServer(("127.0.0.1", 0), Seeing) as server:
        server.seen = []
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with SingleSelector(url, Credentials(str(file))) as selector:
            for key in ("one", "two"):
                file.write_text(key + "\n")
                assert selector.is_healthy()
            file.unlink()
            assert not selector.is_healthy()
            with pytest.raises(HttpError, match="cannot be read"):
                selector.remove_worker(1)
        server.shutdown()
    assert server.seen == ["Bearer one", "Bearer two"]


def test_files_that_hold_no_key_or_no_ca_are_refused_at_the_start(tmp_path):
    (tmp_path / "key").write_text("two words")
    (tmp_path / "ca.pem").write_text("nothing")
    for wrong in ({"api_key_file": str(tmp_path / "key")}, {"ca_file": str(tmp_path / "ca.pem")}):
        with pytest.raises(ValueError, match=str(tmp_path)):
            Follower(lambda: Seen([], True), find, **wrong)

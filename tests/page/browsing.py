"""A real headless browser, and a service for the page."""

import json
import shutil
import urllib.request
from contextlib import contextmanager

import pytest

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: scripts/test_page has it"
)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
MODEL = "llama-3-8b"
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason=f"none of {', '.join(NAMES)} is installed"
)


@contextmanager
def a_browser():
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser, url, *, forgives=(), width=1280, height=900, scheme="light"):
    """Open the page; errors and warnings fail the test unless the text is forgiven."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    wrong = []
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(url)
    yield page
    page.close()
    assert [text for text in wrong if not any(known in text for known in forgives)] == []


def call(url, method, path, body=None, key=None):
    """Return the body of the answer."""
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def register(url, n_workers, n_ranks=1, key=None, **fields):
    for worker_id in range(1, n_workers + 1):
        worker = {
            "worker_id": worker_id,
            "model_name": MODEL,
            "endpoint": f"http://engine-{worker_id}:8000",
            "block_size": 16,
            "data_parallel_size": n_ranks,
            "total_kv_blocks": 400,
            **fields,
        }
        assert call(url, "POST", "/workers", worker, key)["lifecycle"] == "schedulable"


def book(url, name, n_tokens=100):
    body = {"model_name": MODEL, "token_ids": list(range(n_tokens)), "reservation_id": name}
    return call(url, "POST", "/select_and_reserve", body)

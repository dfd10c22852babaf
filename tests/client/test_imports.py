"""Tests of the modules that a program gets by importing the client."""

import subprocess
import sys

UNWANTED = ["numba", "llvmlite", "numpy", "starlette", "uvicorn", "zmq", "aiohttp", "yarl"]


def test_the_client_brings_nothing_of_the_server():
    code = "import sys, select_service.client; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "select_service.client.lease" in loaded
    assert not loaded.intersection(UNWANTED)
    ours = {name.split(".", 1)[1] for name in loaded if name.startswith("select_service.")}
    packages = {name.split(".")[0] for name in ours}
    assert packages == {"base", "client", "net", "schemas"}
    shared = {name for name in ours if name.startswith(("base.", "net."))}
    own = {"base.decode_errors", "base.errors", "base.suggestions", "base.version", "net.urls"}
    assert shared == own

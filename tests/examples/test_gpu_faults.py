"""Tests of the example that reports GPU faults: the read faults and the effect of the reports."""

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import worker_body
from tests.builders.launched_process import own_environment
from tests.builders.running import Running

EXAMPLE = Path(__file__).parents[2] / "docs/examples/gpu_faults.py"
SPEC = importlib.util.spec_from_file_location("gpu_faults", EXAMPLE)
gpu_faults = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu_faults)

LOG = """\
usb 1-1: new device
NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python, Ch 00000010
[1.0] NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE (double bit error)
NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.
"""


def test_tables_of_nvidia_smi_are_read():
    table = "0, 0\n1, 3\n2, [N/A]\n"
    found = gpu_faults.parse_errors(table, ["0", "1", "2", "3"])
    assert found == {"0": 0, "1": 3, "2": 0, "3": None}


def test_fatal_xids_of_the_kernel_log_are_found():
    found = list(gpu_faults.read_kernel_log(io.StringIO(LOG)))
    assert found == ["Xid 48 at 0000:3b:00", "Xid 79 at 0000:af:00"]


def test_new_errors_and_lost_gpus_are_reported_once(tmp_path, monkeypatch):
    tables = iter(["0, 1\n1, 0\n", "0, 1\n1, 0\n", "0, 3\n1, 0\n", "0, 3\n", "0, 3\n"])
    monkeypatch.setattr(gpu_faults, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(
        gpu_faults, "read_errors", lambda gpus: gpu_faults.parse_errors(next(tables), gpus)
    )
    faults = gpu_faults.poll_nvidia_smi(["0", "1"])
    assert next(faults) == "GPU 0 has 3 uncorrectable ECC errors"
    assert next(faults) == "GPU 1 does not answer"


@pytest.mark.process
def test_a_report_takes_the_rank_out():
    with Running("--health-checks=on", "--threads=1") as selector:
        body = worker_body(7, endpoint="http://127.0.0.1:1")
        assert selector.call("POST", "/workers", body).status == 201
        url = f"http://127.0.0.1:{selector.port}"
        command = [sys.executable, str(EXAMPLE), "--selector", url, "--worker", "7", "--kernel"]
        ended = subprocess.run(
            command,
            input=LOG,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env=os.environ | own_environment({}),
        )
        assert ended.stdout.count("reported to") == 2
        (partition,) = selector.call("GET", "/health/fleet").body["partitions"]
        assert partition["ranks"][0]["cause"] == "fatal"
        assert not partition["ranks"][0]["weight"]

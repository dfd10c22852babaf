"""Checks of files: settings, keys, traces, logs, and the service's persisted state."""

import functools
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from select_service.adapters.persistence.health_file import PersistedHealth
from select_service.adapters.persistence.policies_file import PersistedPolicies
from select_service.adapters.persistence.session_file import PersistedSessions
from select_service.adapters.persistence.state_file import PersistedState
from select_service.auth.keys_file import parse_keys_file, parse_replica_keys_file
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.config.admission_rules import _read_profiles
from select_service.config.canary_file import read_canary_config
from select_service.config.discovery_sources import _read_discovery_file, read_workers
from select_service.config.health_settings import _read_promises
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.config.shared_cache_file import read_shared_caches
from select_service.files.json_checksum import add_checksum, split_checksum
from select_service.files.request_trace import TraceError, load_trace
from select_service.files.yaml_document import decode_yaml
from select_service.net.egress_policy import EgressPolicy
from select_service.planner.config_loader import PlannerConfigError, convert_config
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    ForwardPass,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from select_service.planner.planner_log_lines import (
    DecisionLogError,
    SettingsLine,
    TickLine,
    encode_line,
    read_lines,
)
from select_service.planner.profile_files import PREFILL, ProfileFileError, read_profile
from select_service.sim.replay.decision_log_reader import LogFilter, ReplayError, read_logs


class FileKind(NamedTuple):
    """Kind of file.

    read: function of a path
    errors: exceptions that the reader promises
    seeds: contents of valid files
    """

    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzzed")


def check_file(kind: FileKind, data: bytes) -> None:
    path = Path(_folder().name) / "file.yaml"
    path.write_bytes(data)
    try:
        kind.read(path)
    except kind.errors as error:
        check_line(error)


def _read_planner_config(path: Path) -> object:
    return convert_config(decode_yaml(path.read_bytes()))


WORKERS = b"""\
defaults: {model_name: qwen, block_size: 16}
workers:
  - worker_id: 1
    endpoint: http://vllm-0:8000
    kv_events_endpoint: tcp://vllm-0:5557
    kv_cache: {certainty: at_most}
  - endpoint: http://vllm-1:8000
"""
SOURCES = b"""\
sources:
  - name: pool
    dns: vllm.prod.svc:8000
    worker: {tenant_id: t, kv_events_endpoint: "tcp://{host}:5557"}
  - kubernetes: {labels: app=vllm, namespace: prod, port: 8000}
    worker: {topology_domains: {host: "{node}"}}
  - srv: _http._tcp.vllm
"""
CANARIES = b"""\
models:
  m:
    prompts:
      - {prompt: [1, 2, 3], max_tokens: 4, expected_tokens: [5, 6], check_logprobs: true}
      - {prompt: text}
    vocab_size: 32000
    kv_layout: {block_size: 16, layers: 2, kv_heads: 2, head_dim: 64, dtype_bytes: 2}
"""
POLICIES = b"""\
default_policy_family: a
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: a_all, policy_family: a, cache_bucket: all, queue_policy: fcfs, fairness_weights: {x: 4}}
  - {name: batch, quantum: 256}
models:
  m:
    default_policy_family: b
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes: [{name: b, policy_family: b, cache_bucket: all, queue_policy: wspt}]
"""
SHARED_CACHES = b"""\
models:
  m: {type: mooncake, url: "http://master:9003", keys: sglang, tp_size: 2, tp_lcm_size: 4}
  n: {type: lmcache, url: "http://controller:9000", sharing: p2p, link_gbps: 100}
"""
PLANNER = b"""\
selectors: [http://selector:8092]
deployments:
  - name: d
    model_name: m
    connector: {kind: virtual}
"""
YAML_FILES = {
    "workers": FileKind(read_workers, (ValueError,), (WORKERS,)),
    "discovery": FileKind(lambda p: _read_discovery_file(str(p)), (ConfigError,), (SOURCES,)),
    "canaries": FileKind(lambda p: read_canary_config(str(p)), (ConfigError,), (CANARIES,)),
    "policies": FileKind(lambda p: _read_profiles(str(p), 0.5), (ConfigError,), (POLICIES,)),
    "slo": FileKind(
        lambda p: _read_promises(str(p)),
        (ConfigError,),
        (b"models: {m: {rps: 2, ttft_ms: 200, itl_ms: 20}}",),
    ),
    "shared_caches": FileKind(
        lambda p: read_shared_caches(str(p), EgressPolicy()), (ConfigError,), (SHARED_CACHES,)
    ),
    "planner": FileKind(_read_planner_config, (ValueError, PlannerConfigError), (PLANNER,)),
    "keys": FileKind(
        lambda p: parse_keys_file(p, p.read_bytes()),
        (ValueError,),
        (b"keys: [{name: a, hash: 'sha256:" + b"0" * 64 + b"', roles: [metrics]}]",),
    ),
    "replica_keys": FileKind(
        lambda p: parse_replica_keys_file(p, p.read_bytes()),
        (ValueError,),
        (b"replicas: [{name: a, public_key: '" + b"0" * 40 + b"', endpoint: 'tcp://a:1'}]",),
    ),
}
"""Settings files in the order of an input's first byte."""
KINDS = list(YAML_FILES.values())


def check_settings_files(data: bytes) -> None:
    """Read a settings file; the first byte chooses the kind."""
    if data:
        check_file(KINDS[data[0] % len(KINDS)], data[1:])


def settings_seeds() -> list[bytes]:
    common = (b"a: &x [1, *x]", b"{a: !!python/object:os.system x}", b"a: 1\na: 2", b"[" * 500)
    return [
        bytes([number]) + content
        for number, kind in enumerate(KINDS)
        for content in (*kind.seeds, *common)
    ]


def check_toml_keys(data: bytes) -> None:
    for parse in (parse_keys_file, parse_replica_keys_file):
        try:
            parse(Path("keys.toml"), data)
        except ValueError as error:
            check_line(error)


def toml_seeds() -> list[bytes]:
    key = b'[[keys]]\nname = "a"\nhash = "sha256:' + b"0" * 64 + b'"\nroles = ["caller"]\n'
    replica = b'[[replicas]]\nname = "a"\npublic_key = "' + b"0" * 40 + b'"\n'
    return [key + b'tenants = "all"\nquotas = { requests_per_s = 5 }\n', replica]


def check_environments(data: bytes) -> None:
    """Parse lines of NAME=VALUE as the environment; an error about a value must be one line."""
    lines = data.decode(errors="replace").replace("\0", "").split("\n")
    pairs = (line.partition("=") for line in lines)
    environment = {name: value for name, _, value in pairs if name}
    try:
        parse_config([], environment)
    except ConfigError as error:
        check_line(error)


def environment_seeds() -> list[bytes]:
    return [
        b"SELECT_SERVICE_PORT=1\nSELECT_SERVICE_HOST=::1\nSELECT_SERVICE_CONNECT_TO=10.0.0.0/8,.a",
        b"DYN_ROUTER_TEMPERATURE=0.5\nDYN_USE_KV_EVENTS=yes\nSELECT_SERVICE_POLICY=work",
        b"SELECT_SERVICE_REPLICA_SYNC_PEERS=tcp://a:1,tcp://[::1]:2\n"
        b"SELECT_SERVICE_REPLICA_SYNC_PORT=3\nSELECT_SERVICE_INDEXER_PEERS=http://a:1",
        b"SELECT_SERVICE_MIGRATION_LINKS=nvlink=1e11:0.1\nSELECT_SERVICE_HEALTH_CHECKS=on",
    ]


def _read_all(read: Callable[[Path], Any]) -> Callable[[Path], object]:
    return lambda path: list(read(path))


CALL = b'{"t": 0, "type": "n", "in": 4, "out": 2, "hash_ids": [1]}'
TRACES = (
    b'{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n',
    b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 5, "output_length": 2,'
    b' "hash_ids": [1]}\n',
    b'{"block_size": 4, "requests": ['
    + CALL
    + b', {"t": 1, "type": "subagent", "requests": ['
    + CALL
    + b"]}]}\n",
)
"""Contents of traces of Mooncake, Bailian and Weka."""
SCOPE = b'"model_name": "m", "tenant_id": "t", "block_size": 16'
DECISION_LOG = (
    b'{"kind": "log"}\n{"kind": "fleet", ' + SCOPE + b', "ranks": [{"worker_id": 1, "dp_rank": 0, '
    b'"total_kv_blocks": 100, "max_num_batched_tokens": null}]}\n'
    b'{"kind": "decision", ' + SCOPE + b', "decision": 1, "at": 1.5, "policy": "work", '
    b'"isl_tokens": 70, "hash_blocks": 4, "hashes": "00000000000000ff", "worker_id": 1, '
    b'"dp_rank": 0, "candidates": 1, "waited_s": 0.0, "reserved": true, "output_tokens": 16}\n'
)
PLANNER_LOG = b"".join(
    encode_line(line) + b"\n"
    for line in (
        SettingsLine(
            deployment="d", at_s=0.0, settings=DeploymentSettings(mode="agg"), started_s=0.0
        ),
        TickLine(
            deployment="d",
            tick=TickInput(
                now_s=5.0,
                replicas={Role.DECODE: RoleReplicas(ready=2, pending=1)},
                traffic=TrafficWindow(duration_s=5.0, requests=3.0),
                passes={Role.DECODE: (ForwardPass(worker="w", wall_s=0.5),)},
            ),
        ),
    )
)
LOGS = [
    FileKind(
        lambda path: load_trace(path, 1000),
        (TraceError,),
        TRACES,
    ),
    FileKind(_read_all(read_lines), (DecisionLogError,), (PLANNER_LOG,)),
    FileKind(
        lambda p: read_logs([p], LogFilter(None, None, 1000)),
        (ReplayError,),
        (DECISION_LOG,),
    ),
]


def check_logs(data: bytes) -> None:
    """Read a log or trace; the first byte chooses the kind."""
    if data:
        kind = LOGS[data[0] % len(LOGS)]
        path = Path(_folder().name) / "log.jsonl"
        path.write_bytes(data[1:])
        try:
            kind.read(path)
        except kind.errors:
            return


def log_seeds() -> list[bytes]:
    deep = b'{"timestamp": 0, "other": ' + b"[" * 2000 + b"}\n"
    return [
        bytes([number]) + content
        for number, kind in enumerate(LOGS)
        for content in (*kind.seeds, deep)
    ]


def check_profiles(data: bytes) -> None:
    """Read both halves of a measured profile, separated by a zero byte."""
    folder = Path(_folder().name) / "profile"
    folder.mkdir(exist_ok=True)
    prefill, _, decode = data.partition(b"\0")
    (folder / "prefill_raw_data.json").write_bytes(prefill)
    (folder / "decode_raw_data.json").write_bytes(decode)
    check_profile(folder)


def check_archives(data: bytes) -> None:
    """Read half of a measured profile as an archive of arrays."""
    folder = Path(_folder().name) / "archive"
    (folder / PREFILL).mkdir(parents=True, exist_ok=True)
    (folder / PREFILL / "raw_data.npz").write_bytes(data)
    check_profile(folder)


def archive_seeds() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, prefill_isl=np.array([1.0, 2.0]), prefill_ttft=np.array([3, 4]))
        found.append(file.getvalue())
    return found


def check_profile(folder: Path) -> None:
    try:
        read_profile(str(folder))
    except ProfileFileError as error:
        check_line(error)


def check_line(error: Exception) -> None:
    """Require that an error of a file is a single line."""
    text = str(error)
    assert text
    assert "\n" not in text, text


def profile_seeds() -> list[bytes]:
    prefill = b'{"prefill_isl": [1, 2, 4], "prefill_ttft": [1, 2, 3]}'
    decode = b'{"x_kv_usage": [0.1, 0.5], "y_context_length": [10, 20], "z_itl": [1, 2],'
    return [prefill + b"\0" + decode + b' "max_kv_tokens": [1000]}', b"\0"]


STATES = (PersistedState, PersistedHealth, PersistedPolicies, PersistedSessions)


def check_states(data: bytes) -> None:
    """Read persisted files without or with a checksum; each file must survive writing anew."""
    for kind in STATES:
        try:
            content, _ = split_checksum(data)
            state = msgspec.json.decode(content, type=kind)
        except (ValueError, *DECODE_ERRORS):
            continue
        again, has_checksum = split_checksum(add_checksum(msgspec.json.encode(state)))
        assert has_checksum
        assert msgspec.json.decode(again, type=kind) == state


def state_seeds() -> list[bytes]:
    empty = msgspec.json.encode(PersistedState(workers=[], deleted=[], thresholds=[], shed=None))
    others = (b'{"references": []}', b'{"rules": []}', b'{"workers": []}', b"[" * 3000)
    return [add_checksum(empty), empty, *others]

"""Checks of messages and answers of engines, peers, Kubernetes, selectors and plugins."""

from collections.abc import Callable
from typing import Any

import msgspec

from select_service.adapters.health.canary_responses import (
    MalformedResponse,
    parse_completion,
    parse_generated,
)
from select_service.client.errors import SelectorError
from select_service.client.route_table import ClientRoute, SelectorRoutes
from select_service.client.streamed_answers import decode_event as decode_migration
from select_service.core.registry.discovery import engine_facts
from select_service.core.registry.discovery.endpoint_slices import (
    EndpointSlice,
    EndpointSliceTemplate,
    candidates_of_slice,
)
from select_service.core.registry.discovery.engine_candidates import complete_record
from select_service.core.registry.discovery.kubernetes_pods import (
    KubernetesPod,
    KubernetesPodTemplate,
    candidate_of_pod,
    is_serving,
)
from select_service.core.registry.discovery.worker_records import validate_record
from select_service.core.replication.cleared_caches import decode_clears
from select_service.core.replication.digest import decode_digest, encode_digest
from select_service.core.replication.load_events import PeerFrameError, decode_event
from select_service.core.replication.prefill_progress import decode_progress, encode_progress
from select_service.core.replication.session_events import (
    decode_session_event,
    encode_session_event,
)
from select_service.core.replication.session_exchange import decode_session_digest
from select_service.core.workers.metrics_parser import MetricsTextError, parse_in_steps
from select_service.planner.connectors.kube.api_requests import KubernetesError
from select_service.planner.connectors.kube.api_requests import decode_answer as decode_kubernetes
from select_service.planner.connectors.selector_client import decode_refusal
from select_service.planner.plugins.plugin_port import (
    ANSWER_TYPES,
    InvalidAnswer,
)
from select_service.planner.plugins.plugin_port import decode_answer as decode_plugin
from select_service.planner.runtime.forward_pass_source import decode_forward_pass

Decode = Callable[[bytes], Any]
PEER_MESSAGES: list[tuple[Decode, Callable[[Any], bytes] | None]] = [
    (decode_event, None),
    (decode_digest, encode_digest),
    (decode_session_event, encode_session_event),
    (decode_session_digest, None),
    (decode_progress, encode_progress),
    (decode_clears, None),
]
"""Decoders of the messages between replicas, each with the encoder of the decoded message, if any.
"""


def check_peer_messages(data: bytes) -> None:
    """Decode a message, and require that decoding its encoding gives the same message.

    The first byte chooses the kind of message.
    """
    if not data:
        return
    decode, encode = PEER_MESSAGES[data[0] % len(PEER_MESSAGES)]
    try:
        message = decode(data[1:])
    except PeerFrameError:
        return
    if encode is not None:
        again = decode(encode(message))
        assert encode(again) == encode(message), (message, again)


def peer_seeds() -> list[bytes]:
    encode = msgspec.msgpack.encode
    scope = {"model_name": "m", "tenant_id": "t", "routing_group": "t", "block_size": 16}
    worker = {"worker_id": 1, "dp_rank": 0}
    add = {"AddRequest": {"token_sequence": [1, 2**63], "track_prefill_tokens": True}}
    events = [
        {**scope, "event": {"request_id": "r", "worker": worker, "router_id": 7, "data": data}}
        for data in (add, "Free", "MarkPrefillCompleted")
    ]
    session = {**scope, "session_id": "s", **worker, "sequence": 9, "writer_id": 3}
    others = [
        {"router_id": 1, "rows": [["r", 10]]},
        {"router_id": 1, "partitions": [], "scopes": [], "cleared": []},
        session,
    ]
    bodies = [encode(each) for each in (*events, *others)]
    arrays = [encode(list(each.values())) for each in events]
    numbers = range(len(PEER_MESSAGES))
    return [bytes([n]) + body for n in numbers for body in (*bodies, *arrays)]


def check_metrics(data: bytes) -> None:
    try:
        for _ in parse_in_steps(data, (0, 1)):
            pass
    except MetricsTextError:
        return


def metrics_seeds() -> list[bytes]:
    return [
        b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3.0\n'
        b'vllm:num_requests_waiting{engine="1"} 1e3\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n',
        b'sglang:num_running_reqs{dp_rank="0",x="a\\"b"} 2\nsglang:token_usage 0.1 17\n',
    ]


def check_canaries(data: bytes) -> None:
    """Decode an engine's answer to a canary; the first byte chooses the format."""
    if not data:
        return
    kinds: list[Decode] = [
        lambda body: parse_completion(body, True),
        lambda body: parse_completion(body, False),
        parse_generated,
    ]
    try:
        answer = kinds[data[0] % 3](data[1:]).answer
        answer.top[0] if len(answer.top) else None
    except MalformedResponse:
        return


def canary_seeds() -> list[bytes]:
    completion = (
        b'{"choices":[{"text":"a","token_ids":[5],"finish_reason":"length","logprobs":'
        b'{"tokens":["a"],"token_logprobs":[-0.1],"top_logprobs":[{"a":-0.1,"b":NaN}]}}]}'
    )
    generated = (
        b'{"output_ids":[5],"meta_info":{"output_token_logprobs":[[-0.1,5,null]],'
        b'"output_top_logprobs":[[[-0.1,5,null]]],"finish_reason":{"type":"length"}}}'
    )
    return [b"\0" + completion, b"\1" + completion, b"\2" + generated]


PATHS = [
    engine_facts.MODELS,
    engine_facts.METRICS,
    engine_facts.INFO,
    engine_facts.OLD_INFO,
    engine_facts.MODEL_INFO,
]


def check_engine_facts(data: bytes) -> None:
    """Extract facts from answers, and require a valid record or a rejection.

    The input has the answers of the paths in turn, separated by zero bytes.
    """
    answers = dict(zip(PATHS, data.split(b"\0"), strict=False))
    facts = engine_facts.extract_facts("http://engine:8000", answers)
    try:
        validate_record({"worker_id": 1, **facts.fields})
    except ValueError:
        return


def fact_seeds() -> list[bytes]:
    models = b'{"data":[{"id":"m","owned_by":"vllm","max_model_len":9},{"id":"a","parent":"m"}]}'
    metrics = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="9"} 1.0\n'
    vllm = b'{"vllm_config":{"parallel_config":{"data_parallel_size":2},"kv_events_config":'
    vllm += b'{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}}}'
    sglang = b'{"page_size":1,"dp_size":2,"kv_events_config":"{\\"endpoint\\":\\"tcp://*:1\\"}"}'
    return [b"\0".join([models, metrics, vllm]), b"\0".join([b"{}", b"", sglang, b"", b"{}"])]


def check_kubernetes(data: bytes) -> None:
    """Decode a pod or an EndpointSlice, as the first byte chooses."""
    if not data:
        return
    try:
        if data[0] % 2:
            pod = decode_kubernetes(data[1:], KubernetesPod)
            found = [candidate_of_pod(pod, KubernetesPodTemplate(None, {}))] * is_serving(pod)
        else:
            endpoints = decode_kubernetes(data[1:], EndpointSlice)
            found = candidates_of_slice(endpoints, EndpointSliceTemplate(None, None, {}))
        for candidate in found:
            complete_record(candidate, {})
    except (KubernetesError, ValueError):
        return


def kubernetes_seeds() -> list[bytes]:
    pod = (
        b'{"metadata":{"name":"p","namespace":"n","uid":"u","annotations":{"select-service/port":'
        b'"8000","select-service/worker":"{\\"model_name\\":\\"m\\",\\"block_size\\":16}"}},'
        b'"spec":{"containers":[{"ports":[{"containerPort":8000,"name":"http"}]}]},"status":'
        b'{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}'
    )
    endpoints = (
        b'{"metadata":{"name":"s","namespace":"n"},"ports":[{"name":"http","port":8000}],'
        b'"endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},'
        b'"targetRef":{"kind":"Pod","name":"p","namespace":"n"}}]}'
    )
    return [b"\1" + pod, b"\0" + endpoints]


STAGES = sorted(ANSWER_TYPES)


def check_planner_answers(data: bytes) -> None:
    """Decode an answer to the planner; the first byte chooses the kind."""
    if not data:
        return
    kind, content = data[0] % (len(STAGES) + 2), data[1:]
    if kind == len(STAGES):
        decode_refusal(content)
    elif kind > len(STAGES):
        decode_forward_pass(content)
    else:
        try:
            decode_plugin(STAGES[kind], content)
        except InvalidAnswer:
            return


def planner_answer_seeds() -> list[bytes]:
    forward = msgspec.msgpack.encode({"version": 1, "worker_id": "w", "wall_time": 0.1})
    answers = [b'{"targets":[{"role":"prefill","replicas":2}],"reason":"x"}', b"null", b"{}"]
    return [bytes([n]) + body for n in range(len(STAGES) + 2) for body in (*answers, forward)]


CLIENT_ROUTES = [route for route in vars(SelectorRoutes).values() if isinstance(route, ClientRoute)]


def check_client_answers(data: bytes) -> None:
    """Decode an answer to the client; the first byte chooses the route or the stream of moves."""
    if not data:
        return
    number = data[0] % (len(CLIENT_ROUTES) + 1)
    try:
        if number == len(CLIENT_ROUTES):
            decode_migration(data[1:])
        else:
            from select_service.client.client_core import decode_answer
            from select_service.client.transport import ClientResponse

            decode_answer(CLIENT_ROUTES[number], ClientResponse(200, {}, data[1:]))
    except SelectorError:
        return


def client_seeds() -> list[bytes]:
    bodies = [b"{}", b"[]", b"[" * 3000, b'event: gap\ndata: {"missed": 1}', b"\xff"]
    return [bytes([n]) + body for n in range(len(CLIENT_ROUTES) + 1) for body in bodies]

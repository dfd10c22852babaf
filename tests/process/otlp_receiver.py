"""A collector that receives spans over OTLP/HTTP on a free port and decodes them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class ReceivedSpan(NamedTuple):
    """Decoded span.

    trace_id, span_id: hexadecimal digits
    parent_id: hexadecimal digits; empty for a root
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    kind: int
    status: int
    seconds: float
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Receiver:
    """HTTP server of the collector.

    spans: received spans in order of arrival
    hangs: set while requests are left unanswered
    """

    def __init__(self, status: int = 200) -> None:
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self.hangs = threading.Event()
        self._ends = threading.Event()
        self._status = status
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests += 1
                if receiver.hangs.is_set():
                    receiver._ends.wait()
                    return
                if receiver._status == 200:
                    receiver.spans += decode_spans(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(receiver._status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Discard the log line."""

        self._server_keys = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server_keys.serve_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a service that exports to this collector without delay."""
        url = f"http://127.0.0.1:{self._server_keys.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._server_keys.shutdown()
        self._server_keys.server_close()


def decode_spans(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        ReceivedSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.trace_state,
            span.kind,
            span.status.code,
            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            _attributes(span.attributes),
            _attributes(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in pairs}

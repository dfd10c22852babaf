"""Plugin behind a gRPC server, by planner_plugin.proto. Needs the extra `grpc`.

The messages are built from the compiled description of the .proto file: generated code would have
to match the installed version of protobuf.
"""

import asyncio
import ssl
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    struct_pb2,
)

from select_service.net.tls.tls_paths import ClientTlsPaths
from select_service.net.token_file import TokenFile
from select_service.planner.config import PluginConfig
from select_service.planner.core.plugin_contracts import InvalidAnswer, PluginAnswer
from select_service.planner.core.stages import Stage
from select_service.planner.plugins.plugin_port import (
    ANSWER_BYTES_MAX,
    PluginError,
    StageRequest,
    convert_answer,
)

PACKAGE: Final = "select_planner.plugin.v1"
SERVICE: Final = f"/{PACKAGE}.PlannerPlugin/"
DESCRIPTION: Final = "planner_plugin.binpb"
"""File of the compiled description, written by `python -m scripts.plugin_description`."""
TOKEN_S_MAX = 5.0
SECURE: Final = "grpcs"
_METHODS: Final = {
    Stage.PREDICT: ("Predict", "Prediction"),
    Stage.PROPOSE: ("Propose", "ReplicaTargets"),
    Stage.CONSTRAIN: ("Constrain", "ReplicaTargets"),
}


def load_messages() -> Callable[[str], type[Any]]:
    """Return a function from the names of messages to their classes."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    found = descriptor_pb2.FileDescriptorSet.FromString(
        (files(__package__) / DESCRIPTION).read_bytes()
    )
    for file in found.file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
    )


class GrpcPlugin:
    """Plugin over gRPC. The channel is opened with the first call, and anew after errors."""

    def __init__(self, config: PluginConfig, tls: ClientTlsPaths) -> None:
        """tls: files of https; without any the CAs of the system"""
        assert config.url is not None
        self._scheme, _, self._address = config.url.partition("://")
        self._tls = tls
        self._timeout_s = config.timeout_s
        self._token = None if config.token_file is None else TokenFile(Path(config.token_file))
        self._message = load_messages()
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()

    async def call_stage(self, request: StageRequest) -> PluginAnswer | None:
        """Send the context and return the answer."""
        # On a thread: a context of a thousand ranks takes 50 ms to convert.
        given = await asyncio.to_thread(self._make_context, request.body)
        method, answer = _METHODS[request.stage]
        found = await self._call(method, given, self._message(answer))
        plain = json_format.MessageToDict(found, preserving_proto_field_name=True)
        return convert_answer(request.stage, plain)

    async def send_heartbeat(self) -> None:
        """Call Heartbeat."""
        await self._call(
            "Heartbeat", self._message("HeartbeatRequest")(), self._message("HeartbeatReply")
        )

    async def close(self) -> None:
        """Close the channel and the token file."""
        await self._close_channel()
        if self._token is not None:
            await self._token.close()

    async def _call(self, method: str, given: Any, answer: type[Any]) -> Any:
        """Call a method of the server."""
        metadata = await self._read_token()
        channel = await self._open_channel()
        call = channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            return await call(given, timeout=self._timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise await self._call_error(error) from None

    async def _call_error(self, error: grpc.aio.AioRpcError) -> Exception:
        """Return the error of a call; after a lost connection the files of TLS are read anew."""
        code, text = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            await self._close_channel()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimeoutError(text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidAnswer(text[:200])
        return PluginError(f"{code.name}: {text.partition(chr(10))[0][:200]}")

    async def _read_token(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata with the token, if any."""
        if self._token is None:
            return ()
        try:
            token = await self._token.read_token(min(TOKEN_S_MAX, self._timeout_s))
        except ValueError as error:
            raise PluginError(f"token file {error}") from None
        return (("authorization", f"Bearer {token}"),)

    def _make_context(self, body: bytes) -> Any:
        """Return the context as a message."""
        context = self._message("PluginContext")()
        # Fields that the description lacks are for newer plugins.
        return json_format.Parse(body, context, ignore_unknown_fields=True)

    async def _open_channel(self) -> grpc.aio.Channel:
        """Return the channel, which connects with its first call."""
        # Concurrent first calls must share one channel: a second one would never be closed.
        async with self._opening:
            if self._channel is None:
                options = (("grpc.max_receive_message_length", ANSWER_BYTES_MAX),)
                if self._scheme == SECURE:
                    credentials = await asyncio.to_thread(_read_credentials, self._tls)
                    self._channel = grpc.aio.secure_channel(self._address, credentials, options)
                else:
                    self._channel = grpc.aio.insecure_channel(self._address, options)
            return self._channel

    async def _close_channel(self) -> None:
        """Close the channel, if one is open."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _read_credentials(tls: ClientTlsPaths) -> grpc.ChannelCredentials:
    """Read the CAs, which include those of the system, and the client certificate. Blocks.

    Raises PluginError.
    """
    system = ssl.get_default_verify_paths().cafile
    roots = [Path(each) for each in (system, tls.ca) if each is not None]
    pair = tls.pair
    try:
        return grpc.ssl_channel_credentials(
            root_certificates=b"\n".join(path.read_bytes() for path in roots) or None,
            private_key=None if pair is None else pair.key.read_bytes(),
            certificate_chain=None if pair is None else pair.certificate.read_bytes(),
        )
    except OSError as error:
        raise PluginError(f"TLS files: {error}") from None

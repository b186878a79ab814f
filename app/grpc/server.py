"""The gRPC server: its services, its port and its end. It runs on the event loop of the HTTP server, a uvloop."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from antiphon.app.context import ServerContext
from antiphon.app.grpc.descriptors import ENGINE_SERVICE
from antiphon.app.grpc.engine_service import EngineService
from antiphon.app.http.middleware import RequestGuard
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.route_helpers.engine_ready import unready_reason

_HEALTH_POLL_S = 1.0
"""Seconds between two looks at the engines for clients that watch the server's health."""
_PEM_KEY = b"PRIVATE KEY-----"


class GrpcServer:
    """Serves gRPC until `stop`. `guard` is the request guard of the HTTP application.

    The port of the settings has the engine service of the first model. Each further model has the next port, because
    routers tell models apart by the address of their worker.
    Raises `OSError` if a port cannot be bound.
    """

    def __init__(self, context: ServerContext, guard: RequestGuard) -> None:
        self._listeners: list[_GrpcListener] = []
        for index, model in enumerate(context.models.served):
            engine = EngineService(context, guard, model)
            self._listeners.append(_GrpcListener(context, model, engine.generic_handler, index))
        self.ports = tuple(listener.port for listener in self._listeners)
        """TCP ports, in the order of the models."""

    async def start(self) -> None:
        """Starts to accept calls."""
        for listener in self._listeners:
            await listener.start()

    async def stop(self, grace_s: float) -> None:
        """Rejects new calls, and cancels those that have not ended after `grace_s` seconds."""
        await asyncio.gather(*(listener.stop(grace_s) for listener in self._listeners))


class _GrpcListener:
    """The server of one port: the engine service of the model with this index."""

    def __init__(self, context: ServerContext, model: ServedModel, handler: Any, index: int) -> None:
        settings = context.settings
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),  # else a port in use would be shared
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            )
        )
        self._health = _EngineHealth(context, model)
        self._server.add_generic_rpc_handlers((handler,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (ENGINE_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = self._bind(settings, index)
        """TCP port."""

    async def start(self) -> None:
        """Starts to accept calls."""
        await self._server.start()
        self._health.start()

    async def stop(self, grace_s: float) -> None:
        """Rejects new calls, and cancels those that have not ended after `grace_s` seconds."""
        await self._health.stop()
        await self._server.stop(grace_s)

    def _bind(self, settings: Settings, index: int) -> int:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port and settings.grpc_port + index}"
        try:
            credentials = _load_credentials(settings)
            port: int = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError:
            reason = ": each model takes the next one" if index else ""
            raise OSError(f"cannot listen on {address}; choose another --grpc port{reason}") from None
        return port


def _load_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Returns the certificate and key of the HTTP server, which has checked them; None if it serves plain HTTP."""
    if settings.ssl_certfile is None:
        return None
    certificate = settings.ssl_certfile.read_bytes()
    key = _load_private_key(settings.ssl_keyfile or settings.ssl_certfile, settings.ssl_keyfile_password)
    return grpc.ssl_server_credentials(((key, certificate),))


def _load_private_key(path: Path, password: str | None) -> bytes:
    """Returns the key in a PEM file, not encrypted: gRPC accepts no password."""
    data = path.read_bytes()
    block = data[data.rfind(b"-----BEGIN", 0, data.find(_PEM_KEY)) :]
    is_encrypted = b"ENCRYPTED" in block
    key = load_pem_private_key(block, (password or "").encode() if is_encrypted else None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class _EngineHealth(health.aio.HealthServicer):  # type: ignore[misc]  # the package has no types
    """Health of a port, and of the engine service that it has: SERVING while its model is ready."""

    def __init__(self, context: ServerContext, model: ServedModel) -> None:
        super().__init__()
        self._context, self._model = context, model
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to tell clients that watch."""
        self._watching = asyncio.create_task(self._update_forever(), name="grpc-health")

    async def stop(self) -> None:
        """Reports NOT_SERVING from now on."""
        if self._watching is not None:
            self._watching.cancel()
        await self.enter_graceful_shutdown()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # the name in the protocol
        """Returns the health of a service now."""
        await self._update()
        return await super().Check(request, context)

    async def _update_forever(self) -> None:
        while True:
            await self._update()
            await asyncio.sleep(_HEALTH_POLL_S)

    async def _update(self) -> None:
        reply = health_pb2.HealthCheckResponse
        is_ready = unready_reason(self._context, self._model) is None
        for name in ("", ENGINE_SERVICE):
            await self.set(name, reply.SERVING if is_ready else reply.NOT_SERVING)

"""The server process: SIGTERM and Ctrl-C end it after the last answer, SIGHUP loads the models again.

A second Ctrl-C ends it at once.

The system also sends SIGHUP when a terminal is closed. That ends the server of this terminal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from nmt_cli.memory import collect_garbage_rarely
from nmt_cli.serving.app import create_app
from nmt_cli.serving.glossaries import GlossaryStore
from nmt_cli.serving.keys import ApiKeys
from nmt_cli.serving.listener import Listener
from nmt_cli.serving.log import configure_server_log
from nmt_cli.serving.models import ServedModel
from nmt_cli.serving.origins import AllowedOrigins
from nmt_cli.serving.request_limits import RequestLimits
from nmt_cli.serving.router import ModelRouter
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.service import Service
from nmt_cli.serving.worker_pool import ModelSettings

logger = logging.getLogger(__name__)
# A logger of its own, whose lines can appear in spite of `--quiet`.
_address_logger = logger.getChild("address")

_MAX_HEAD_BYTES = 1 << 16
# Beyond so many open connections, uvicorn itself answers 503.
_CONNECTIONS_PER_REQUEST = 4
_FILES_PER_REQUEST = 6
_STDIN = 0
_KEEP_ALIVE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of `nmt serve`."""

    models: Sequence[Path]
    host: str
    port: int
    uds: Path | None
    model_settings: ModelSettings
    limits: RequestLimits
    keys: ApiKeys
    glossaries: GlossaryStore
    allowed_origins: AllowedOrigins


def run(settings: ServerSettings) -> None:
    """Serve until SIGTERM or Ctrl-C; every request that was accepted is answered first, long documents with 503.

    NmtError if the address cannot be taken or a model cannot be loaded.
    """
    if settings.port == 0:
        _address_logger.setLevel(logging.INFO)  # otherwise nobody would know the port
    configure_server_log()
    with closing(Listener(host=settings.host, port=settings.port, uds=settings.uds)) as listener:
        asyncio.run(_serve(settings, listener))


async def _serve(settings: ServerSettings, listener: Listener) -> None:
    _allow_open_files(settings.limits.concurrent_requests * _FILES_PER_REQUEST)
    metrics = ServerMetrics()
    models = ModelRouter([ServedModel(path, settings.model_settings, metrics) for path in settings.models])
    service = Service(models, settings.limits, settings.keys, metrics, glossaries=settings.glossaries)
    server = _Server(_uvicorn_config(create_app(service, allowed_origins=settings.allowed_origins), settings))
    metrics.connections.set_function(lambda: len(server.server_state.connections))
    loading = asyncio.ensure_future(models.load())
    reloads = _handle_signals(server, service, loading)
    try:
        await loading
        collect_garbage_rarely()
        listener.listen()
        if not (listener.is_for_this_machine or settings.keys.are_required):
            logger.warning("everybody who reaches this address can translate here: --api-key-file asks for keys")
        _address_logger.info("ready: %s", listener.url)
        _tell_systemd("READY=1")
        await server.serve(sockets=[listener.socket])
        if server.force_exit:
            # It would log a traceback for each request that is cut off.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        logger.info("ended at once" if server.force_exit else "all requests are answered")
    except asyncio.CancelledError:
        logger.info("ended before the models were loaded")
    finally:
        for reload in reloads:
            reload.cancel()
        await asyncio.gather(*reloads, return_exceptions=True)
        await models.close()


def _uvicorn_config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        limit_concurrency=_CONNECTIONS_PER_REQUEST * settings.limits.concurrent_requests,
        # A Unix socket has no address of its client: only a proxy of this machine can reach it.
        forwarded_allow_ips="*" if settings.uds else None,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.limits.timeout_seconds) + 5,
    )


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: the workers must be ended after the last request."""
        yield


def _tell_systemd(state: str) -> None:
    """Send a state to the socket in NOTIFY_SOCKET, where systemd waits for it (sd_notify(3), Type=notify)."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, suppress(OSError):
            systemd.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            systemd.sendall(state.encode())


def _handle_signals(server: _Server, service: Service, loading: asyncio.Future[None]) -> set[asyncio.Task[None]]:
    """Let SIGTERM and Ctrl-C end the server; SIGHUP reloads keys and models, or ends the server with its terminal.

    The set has the reloads that are not done.
    """
    loop, is_on_terminal = asyncio.get_running_loop(), os.isatty(_STDIN)
    reloads: set[asyncio.Task[None]] = set()

    def end(number: int) -> None:
        service.ending.set()
        if not server.should_exit:
            logger.info("ending: requests in work are answered first; a second Ctrl-C ends at once")
            _tell_systemd("STOPPING=1")
        loading.cancel()
        server.handle_exit(number, None)

    def reload_or_end() -> None:
        if is_on_terminal and not os.isatty(_STDIN):  # the terminal is gone
            end(signal.SIGHUP)
        elif not loading.done():
            logger.info("the models are being loaded already")
        elif not server.should_exit:
            task = asyncio.ensure_future(service.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload_or_end)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    return reloads


def _allow_open_files(number: int) -> None:
    """Raise the limit of open files to this number, or as far as the system allows; each connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))

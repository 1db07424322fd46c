"""The server process: SIGTERM and Ctrl-C end it after the last answer, SIGHUP loads the models again.

The system also sends SIGHUP when a terminal is closed. That ends the server of this terminal.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from nmt_cli.errors import NmtError, UsageError
from nmt_cli.memory import collect_garbage_rarely
from nmt_cli.serving.app import create_app
from nmt_cli.serving.http_protocol import ServerConnections
from nmt_cli.serving.keys import ApiKeys
from nmt_cli.serving.listener import Listener
from nmt_cli.serving.log import RefusalLog, configure_server_log
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.models import ModelRouter, ModelSettings, ServedModel
from nmt_cli.serving.origins import AllowedOrigins
from nmt_cli.serving.service import RequestLimits, Service
from nmt_cli.serving.worker_process import remove_left_folders

logger = logging.getLogger(__name__)
# A logger of its own, whose lines can appear in spite of `--quiet`.
_address_logger = logger.getChild("address")

# A client that sends or reads nothing for this long loses its connection.
_PATIENCE_SECONDS = 15.0
_CONNECTIONS_PER_REQUEST = 4
_STDIN = 0
# Open files besides connections: some of the process itself, and for each worker a socket, a pipe and a folder. While
# the model changes, each worker has a second one beside it.
_FILES_OF_SERVER = 32
_FILES_PER_WORKER = 6
_MIN_CONNECTIONS = 8
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
    allowed_origins: AllowedOrigins


def missing_library() -> str | None:
    """A library of the extra that is missing and is imported late; else None."""
    return next((name for name in ("py3langid", "python_multipart") if find_spec(name) is None), None)


def run(settings: ServerSettings) -> None:
    """Serve until SIGTERM or Ctrl-C; every request that was accepted is answered first.

    NmtError if the address cannot be taken or a model cannot be loaded.
    """
    if settings.port == 0:
        _address_logger.setLevel(logging.INFO)  # otherwise nobody would know the port
    configure_server_log()
    with closing(Listener(host=settings.host, port=settings.port, uds=settings.uds)) as listener:
        remove_left_folders()
        asyncio.run(_serve(settings, listener))


async def _serve(settings: ServerSettings, listener: Listener) -> None:
    max_connections = _raise_file_limit(settings)
    settings.keys.warn_if_world_readable()
    metrics = ServerMetrics()
    models = ModelRouter([ServedModel(path, settings.model_settings, metrics) for path in settings.models])
    service = Service(models, settings.limits, settings.keys, metrics)
    refusals = RefusalLog()

    def note_refusal(status: int, reason: str) -> None:
        metrics.refused.labels(str(status)).inc()
        refusals.add(status, reason)

    asyncio.get_running_loop().set_exception_handler(partial(_handle_loop_exception, note_refusal))
    connections = ServerConnections(max_connections, _PATIENCE_SECONDS, note_refusal)
    app = create_app(service, allowed_origins=settings.allowed_origins)
    config = _uvicorn_config(app, connections, timeout_seconds=settings.limits.timeout_seconds)
    server = _Server(config, listener, connections)
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
        logger.info("all requests are answered")
    except asyncio.CancelledError:
        logger.info("ended before the models were loaded")
    finally:
        for reload in reloads:
            reload.cancel()
        await asyncio.gather(*reloads, return_exceptions=True)
        await models.close()


def _uvicorn_config(app: ASGIApp, connections: ServerConnections, *, timeout_seconds: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections.protocol,
        # asyncio calls accept() this often per event, and logs each failure. One is enough.
        backlog=1,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        # A request may take this long to arrive, and as long again to be answered.
        timeout_graceful_shutdown=int(2 * timeout_seconds) + 5,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listener: Listener, connections: ServerConnections) -> None:
        super().__init__(config)
        self._listener = listener
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: the workers must be ended after the last request."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener.listen()  # with its own backlog: asyncio has set the backlog of the configuration

    def end(self) -> None:
        """End soon. From now on each answer says that it is the last one of its connection."""
        self.should_exit = True
        self._connections.is_ending = True
        connections: set[Any] = {*self.server_state.connections}
        for connection in connections:
            if connection.cycle is not None:
                connection.cycle.keep_alive = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Also serve the connections that the system has queued: closing the listener would reset them."""
        waiting = list(self._listener.accept_waiting())
        for server in self.servers:  # at once: a connection that the system made in between would be reset
            server.close()
        protocol: Any = self.config.http_protocol_class
        factory = partial(protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(loop.connect_accepted_socket(factory, connection)) for connection in waiting]
        await super().shutdown(sockets)
        await asyncio.gather(*tasks, return_exceptions=True)


def _handle_loop_exception(
    note_refusal: Callable[[int, str], None], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Log an error that asyncio cannot raise; a lack of open files counts as a refused connection."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        note_refusal(503, f"no connection can be accepted: {error.strerror}")
    else:
        loop.default_exception_handler(context)


def _tell_systemd(state: str) -> None:
    """Send a state to the socket in NOTIFY_SOCKET, where systemd waits for it (sd_notify(3), Type=notify)."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, suppress(OSError):
            systemd.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            systemd.sendall(state.encode())


def _handle_signals(
    server: _Server, service: Service, loading: asyncio.Future[None]
) -> set[asyncio.Task[list[NmtError]]]:
    """Let SIGTERM and Ctrl-C end the server; SIGHUP reloads keys and models, or ends the server with its terminal.

    The set has the reloads that are not done.
    """
    loop, is_on_terminal = asyncio.get_running_loop(), os.isatty(_STDIN)
    reloads: set[asyncio.Task[list[NmtError]]] = set()

    def end() -> None:
        logger.info("ending: requests in work are answered first")
        _tell_systemd("STOPPING=1")
        loading.cancel()
        server.end()

    def reload_or_end() -> None:
        if is_on_terminal and not os.isatty(_STDIN):  # the terminal is gone
            end()
        elif not loading.done():
            logger.info("the models are being loaded already")
        elif not server.should_exit:
            task = asyncio.ensure_future(service.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    for number, handle in ((signal.SIGTERM, end), (signal.SIGINT, end), (signal.SIGHUP, reload_or_end)):
        loop.add_signal_handler(number, handle)
    return reloads


def _raise_file_limit(settings: ServerSettings) -> int:
    """The maximum number of connections, each an open file; the limit of open files is raised as far as possible.

    UsageError if the server's own files leave room for almost no connections.
    """
    wanted_connections = _CONNECTIONS_PER_REQUEST * settings.limits.requests
    own_files = _FILES_OF_SERVER + _FILES_PER_WORKER * settings.model_settings.workers * len(settings.models)
    wanted_files = wanted_connections + own_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted_files:
        return wanted_connections
    allowed_files = wanted_files if hard == resource.RLIM_INFINITY else min(wanted_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed_files, hard))
    max_connections = allowed_files - own_files
    if max_connections < min(wanted_connections, _MIN_CONNECTIONS):
        hint = f"allow at least {wanted_files:,}: ulimit -n {wanted_files}, or LimitNOFILE in the unit of systemd"
        message = f"the system allows {allowed_files:,} open files, and the server itself needs {own_files:,}"
        raise UsageError(message, where="nmt serve", hint=hint)
    if max_connections < wanted_connections:
        message = "at most %d connections at once instead of %d: the system allows %d open files (ulimit -n)"
        logger.warning(message, max_connections, wanted_connections, allowed_files)
    return max_connections

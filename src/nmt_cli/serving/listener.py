"""The listener of a server: bound to an address and port, or to a path of this machine, a Unix socket."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from nmt_cli.errors import UsageError

_BACKLOG = 1024


class Listener:
    """A bound socket, which takes connections once `listen` is called."""

    def __init__(self, *, host: str, port: int, uds: Path | None) -> None:
        """Bind the socket to `uds`, or to host and port without it; UsageError if that cannot be done."""
        self._host, self._port, self._uds = host, port, uds
        self.socket = _bind_address(host, port) if uds is None else _bind_path(uds)
        self.socket.setblocking(False)
        self._inode = uds and uds.stat().st_ino

    def listen(self) -> None:
        """Take connections from now on; UsageError if the address was taken in the meantime."""
        try:
            self.socket.listen(_BACKLOG)
        except OSError as error:
            raise _address_error(self._host, self._port, error) from None

    @property
    def url(self) -> str:
        """Where it listens, for people; if that is every address, one that others of the network can reach."""
        if self._uds is not None:
            return f"unix:{self._uds}"
        host, port = self.socket.getsockname()[:2]
        if ip_address(host).is_unspecified:
            host = _address_on_network()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_for_this_machine(self) -> bool:
        """Whether only programs of this machine can reach it."""
        return self._uds is not None or ip_address(self.socket.getsockname()[0]).is_loopback

    def close(self) -> None:
        """Take no more connections."""
        with suppress(FileNotFoundError):
            # A server that was started while this one loaded its models may have taken the path.
            if self._uds is not None and self._uds.stat().st_ino == self._inode:
                self._uds.unlink()
        self.socket.close()


def _address_on_network() -> str:
    """The address from which this machine would ask another network, or else its name. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address of documents (RFC 5737)
        return str(probe.getsockname()[0])
    return socket.gethostname()


def _bind_address(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _address_error(host, port, error) from None
    # Of localhost, 127.0.0.1 is taken rather than ::1: programs that are given either name reach it.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _address_error(host, port, error) from None
    return listener


def _bind_path(path: Path) -> socket.socket:
    """A socket at a path; another socket there that a killed server has left is removed."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _is_listened_at(path):
            path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        # Python itself finds a path too long, and says so without strerror.
        hint = "give a short path where no file or server is, in a folder that you may write to: `uds: /tmp/nmt.sock`"
        raise UsageError(f"cannot listen at {path}: {error.strerror or error}", setting="uds", hint=hint) from None
    return listener


def _is_listened_at(path: Path) -> bool:
    """Whether a server takes connections at a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)  # a busy server might let it wait
        return client.connect_ex(str(path)) != errno.ECONNREFUSED


def _address_error(host: str, port: int, error: OSError | UnicodeError) -> UsageError:
    if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
        setting, hint = "port", "give another `port`, or end what listens there"
    else:
        setting, hint = "host", "give an address of this machine: 127.0.0.1, or 0.0.0.0 for every one that it has"
    reason = getattr(error, "strerror", "it is no name")
    return UsageError(f"cannot listen at {host}:{port}: {reason}", setting=setting, hint=hint)

"""Documents of clients: each is translated while other requests are answered, and its file is kept for an hour."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from nmt_cli.errors import NmtError
from nmt_cli.serving.keys import KeyOwner
from nmt_cli.serving.request_errors import ClientGone, RequestError, not_found_error, server_busy_error

logger = logging.getLogger(__name__)

_KEPT_SECONDS = 3600.0
# Of one key, or of everybody without one.
_MAX_DOCUMENTS = 50


@dataclass(eq=False, slots=True)
class StoredDocument:
    """A document that is being translated, and then the file of its translation.

    Nobody can guess its id and its key. `name` is that of its translation.
    """

    id: str
    key: str
    name: str
    owner: str
    characters: int
    file: Path
    work: asyncio.Task[None]

    @property
    def is_done(self) -> bool:
        """Whether the file is there."""
        return self.work.done() and self.error is None

    @property
    def error(self) -> str | None:
        """Why there will be no file, if that is so."""
        if not self.work.done() or self.work.cancelled():
            return "the translation was ended" if self.work.done() else None
        match self.work.exception():
            case None:
                return None
            case RequestError() as error:
                return error.message_with_hint
            case NmtError() as error:
                return f"{error.message} ({error.hint})"
            case _:
                return "the server raised an unexpected error"


class DocumentStore:
    """The documents of a server, in a folder that is gone with it."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="nmt-serve-")
        self._by_id: dict[str, StoredDocument] = {}

    def check_room(self, owner: KeyOwner) -> None:
        """Forget the oldest document of an owner who has too many; RequestError if all of them are in work."""
        own = [document for document in self._by_id.values() if document.owner == owner.name]
        if len(own) >= _MAX_DOCUMENTS:
            oldest = next((document for document in own if document.work.done()), None)
            if oldest is None:
                raise server_busy_error(f"{len(own)} documents are in work", retry_after_seconds=10)
            self._forget(oldest)

    def start(
        self, name: str, translating: Coroutine[None, None, bytes], *, target: str, characters: int, owner: KeyOwner
    ) -> StoredDocument:
        """The document of this name, whose translation into a target language is now in work."""
        document_id, key = secrets.token_hex(16), secrets.token_hex(32)
        file = Path(self._folder.name) / document_id
        path = PurePosixPath(name.replace("\\", "/"))
        work = asyncio.ensure_future(_write(file, translating))
        translated_name = f"{path.stem}_{target}{path.suffix}"
        document = StoredDocument(document_id, key, translated_name, owner.name, characters, file, work)
        self._by_id[document_id] = document
        work.add_done_callback(_log_unexpected)
        asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._forget, document)
        return document

    def find(self, document_id: str, *, key: str, owner: KeyOwner) -> StoredDocument:
        """The document of an owner; RequestError if there is none with this id and key."""
        document = self._by_id.get(document_id)
        if document is None or document.owner != owner.name or document.key != key:
            raise _no_document_error()
        return document

    def find_by_key(self, key: str) -> StoredDocument:
        """The document with a key; RequestError if there is none, or its file is not there."""
        document = next((document for document in self._by_id.values() if document.key == key), None)
        if document is None or not document.is_done:
            raise _no_document_error()
        return document

    def _forget(self, document: StoredDocument) -> None:
        document.work.cancel()
        document.file.unlink(missing_ok=True)
        self._by_id.pop(document.id, None)


async def _write(file: Path, translating: Coroutine[None, None, bytes]) -> None:
    content = await translating
    await asyncio.to_thread(file.write_bytes, content)


def _log_unexpected(work: asyncio.Task[None]) -> None:
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, NmtError | ClientGone):
        logger.error("a document could not be translated", exc_info=error)


def _no_document_error() -> RequestError:
    return not_found_error("Document", hint="it is kept for an hour; send it again")

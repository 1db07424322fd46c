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
from nmt_cli.serving.request_errors import (
    FAILED,
    ClientGone,
    RequestError,
    not_found_error,
    request_error_from,
    unexpected_error,
)

logger = logging.getLogger(__name__)

_KEPT_SECONDS = 3600.0
# Of one key, or of everybody without one.
_MAX_DOCUMENTS = 50


@dataclass(eq=False, slots=True)
class StoredDocument:
    """A document that is being translated, and then the file of its translation.

    Nobody can guess its id and its key. `name` is that of its translation. `is_fetched` says whether a client has had
    the file.
    """

    id: str
    key: str
    name: str
    owner: str
    characters: int
    file: Path
    work: asyncio.Task[None]
    is_fetched: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the file is there."""
        return self.work.done() and self.error is None

    @property
    def error(self) -> RequestError | None:
        """Why there will be no file, if that is so."""
        match self.work.exception() if self.work.done() else None:
            case None:
                return None
            case NmtError() as error:
                return request_error_from(error, status=400, code=FAILED)
            case _:
                return unexpected_error()


class DocumentStore:
    """The documents of a server, in a folder that is gone with it."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="nmt-serve-")
        self._by_id: dict[str, StoredDocument] = {}

    def make_room(self, owner: KeyOwner) -> None:
        """Forget the oldest document of an owner who has too many, if its file was fetched or it has failed.

        RequestError if all of them are in work or wait for their clients.
        """
        own = [document for document in self._by_id.values() if document.owner == owner.name]
        if len(own) >= _MAX_DOCUMENTS:
            oldest = next((document for document in own if document.is_fetched or document.error is not None), None)
            if oldest is None:
                message, seconds = f"{len(own)} documents are in work, or wait to be fetched", 10
                hint = f"fetch them, or try again in {seconds} s"
                code = "too_many_documents"
                raise RequestError(message, hint=hint, status=429, code=code, retry_after_seconds=seconds)
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
        loop = asyncio.get_running_loop()
        work.add_done_callback(_log_unexpected)
        work.add_done_callback(lambda _: loop.call_later(_KEPT_SECONDS, self._forget, document))
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

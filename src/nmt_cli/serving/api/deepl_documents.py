"""DeepL's API of documents: send a file, ask whether its translation is done, and fetch it."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Annotated, Literal

from fastapi import UploadFile
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field

from nmt_cli.serving.api.deepl import DeepLOptions, KeyedDeepLCall, check_supported, deepl_router, find_terms
from nmt_cli.serving.api.endpoints import FILE_FORM, Call, FileRoute, file_response, json_response
from nmt_cli.serving.api.requests import caller_name
from nmt_cli.serving.document_store import StoredDocument
from nmt_cli.serving.queued_texts import Caller
from nmt_cli.serving.request_errors import invalid_request_error, server_busy_error


class DeepLDocumentRequest(DeepLOptions):
    """A document to translate."""

    file: UploadFile
    filename: Annotated[str | None, Field(description="else the file's own name")] = None
    output_format: Annotated[str | None, Field(description="only the document's own")] = None


class DeepLDocumentHandle(BaseModel):
    """What a document is asked for by."""

    document_id: str
    document_key: str


class DeepLDocumentKeyRequest(BaseModel):
    """The key of a document."""

    document_key: str


class DeepLDocumentStatus(BaseModel):
    """How far the translation of a document is."""

    document_id: str
    status: Literal["translating", "done", "error"]
    billed_characters: Annotated[int | None, Field(description="once it is done")] = None
    error_message: Annotated[str | None, Field(description="if it is an error")] = None


router = deepl_router()


async def send_document(fields: Annotated[DeepLDocumentRequest, FILE_FORM], call: KeyedDeepLCall) -> Response:
    """Begin to translate a document, whose translation is kept for an hour."""
    check_supported(fields)
    name = fields.filename or fields.file.filename or ""
    ending = PurePosixPath(name).suffix.removeprefix(".").lower()
    if fields.output_format and fields.output_format.lower() != ending:
        hint = f"leave output_format out: a document in {ending} comes back in {ending}"
        raise invalid_request_error("output_format is not supported", hint=hint, where="output_format")
    document = await call.service.start_document(
        await fields.file.read(),
        name,
        source=fields.source_lang,
        target=fields.target_lang,
        terms=await find_terms(fields, call),
        owner=call.owner,
        # It does not wait, so it never leaves.
        caller=Caller(caller_name(call.request), asyncio.get_running_loop().create_future()),
    )
    return json_response({"document_id": document.id, "document_key": document.key})


router.add_api_route(
    "/v2/document",
    send_document,
    methods=["POST"],
    response_model=DeepLDocumentHandle,
    route_class_override=FileRoute,
)


@router.post("/v2/document/{document_id}", response_model=DeepLDocumentStatus)
async def document_status(fields: DeepLDocumentKeyRequest, call: KeyedDeepLCall) -> Response:
    """How far the translation of a document is."""
    document = _document(fields, call)
    answer: dict[str, str | int] = {"document_id": document.id, "status": "translating"}
    if document.error is not None:
        answer |= {"status": "error", "error_message": document.error.message_with_hint}
    elif document.is_done:
        answer |= {"status": "done", "billed_characters": document.characters}
    return json_response(answer)


@router.post("/v2/document/{document_id}/result", response_class=FileResponse)
async def fetch_document(fields: DeepLDocumentKeyRequest, call: KeyedDeepLCall) -> Response:
    """The translated document."""
    document = _document(fields, call)
    if document.error is not None:
        raise document.error
    if not document.is_done:
        raise server_busy_error("the document is not translated", retry_after_seconds=1, code="not_ready")
    return file_response(document)


def _document(fields: DeepLDocumentKeyRequest, call: Call) -> StoredDocument:
    document_id = call.request.path_params["document_id"]
    return call.service.documents.find(document_id, key=fields.document_key, owner=call.owner)

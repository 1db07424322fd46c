"""`nmt serve`: models behind HTTP, and a page to translate on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nmt_cli import devices
from nmt_cli.cli.arguments import DebugOption, QuietOption, find_models, model_option
from nmt_cli.errors import UsageError, import_package

# A batch takes seconds. A worker is killed if it does not answer in this time, or in twice --timeout if that is longer.
_MIN_BATCH_TIMEOUT_SECONDS = 60.0
_MAX_BEAM = 16
_LIBRARIES = ("fastapi", "prometheus_client", "py3langid", "python_multipart", "uvicorn")
_MAX_DEFAULT_WORKERS = 4  # each worker has a copy of the model


def serve(
    model: Annotated[
        list[Path] | None,
        model_option(help="Model or run, repeatable; else the newest."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; * is every address of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    uds: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Unix socket to listen on instead, for a proxy.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="torch|ctranslate2", help="ctranslate2 is an extra that is fast on CPUs.")
    ] = "torch",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: a GPU if there is one.")] = "auto",
    precision: Annotated[
        str, typer.Option(metavar="auto|fp32|bf16|int8", help="Precision of matrix products; int8 is for CPUs.")
    ] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes per model; else a share of the CPUs, up to 4; 1 on a GPU."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="CPU threads per worker; else all CPUs but one, shared.")
    ] = None,
    max_batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Source pieces times beam at once; else the model's own.")
    ] = None,
    max_wait_ms: Annotated[
        float,
        typer.Option(
            metavar="MS", min=0, max=1000, help="Milliseconds that a free worker waits for its batch to fill."
        ),
    ] = 50.0,
    split_beyond: Annotated[int, typer.Option(metavar="N", min=8, help="Split sentences of more than N pieces.")] = 128,
    queue_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of waiting sentences per model.")
    ] = 1024,
    max_requests: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of concurrent requests.")] = 512,
    char_limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of characters per text.")
    ] = 10_000,
    batch_limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of texts per request.")] = 200,
    max_alternatives: Annotated[
        int, typer.Option(metavar="N", min=0, max=_MAX_BEAM - 1, help="Maximum number of alternatives per text.")
    ] = 9,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds after which a request fails.")
    ] = 30.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys that requests need: lines of NAME KEY REQUESTS_PER_MINUTE."),
    ] = None,
    glossaries: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that keeps glossaries of terms; else they end with the server."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Site whose pages may call: https://*.example.org; * is any. Repeatable.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further name to answer to: *.example.org; * is any. Repeatable."),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve models over HTTP: a page, and the APIs of LibreTranslate and DeepL.

    Example: nmt serve -m runs/base --port 8000
    """
    for library in _LIBRARIES:
        import_package(library, extra="serve")
    from nmt_cli.serving.glossaries import GlossaryStore
    from nmt_cli.serving.keys import ApiKeys
    from nmt_cli.serving.origins import AllowedOrigins
    from nmt_cli.serving.request_limits import RequestLimits
    from nmt_cli.serving.server import ServerSettings, run
    from nmt_cli.serving.worker_model import EngineSettings
    from nmt_cli.serving.worker_pool import ModelSettings

    # The path of a run stays as it is, so that a reload finds the run's newest model.
    models = [path if path.exists() else find_models([path])[0] for path in model] if model else find_models(None)
    num_workers = workers or _default_workers(engine, num_models=len(models), device=device, precision=precision)
    shared_cpus = devices.num_cpus() - 1  # the server itself has one
    threads = threads or max(1, shared_cpus // (num_workers * len(models)))
    host = "0.0.0.0" if host == "*" else host.lower()
    origins, names = _origins(cors or []), _host_names(allow_host or [])
    settings = ServerSettings(
        models,
        host,
        port,
        uds,
        model_settings=ModelSettings(
            engine=EngineSettings(engine, device, precision, threads),
            workers=num_workers,
            max_batch_tokens=max_batch_tokens,
            max_wait_seconds=max_wait_ms / 1000,
            max_queued_sentences=queue_size,
            batch_timeout_seconds=max(_MIN_BATCH_TIMEOUT_SECONDS, 2 * timeout),
            split_pieces=split_beyond,
        ),
        limits=RequestLimits(
            characters=char_limit,
            texts=batch_limit,
            sentences=queue_size,
            concurrent_requests=max_requests,
            timeout_seconds=timeout,
            alternatives=max_alternatives,
            beam=_MAX_BEAM,
        ),
        keys=ApiKeys(api_key_file),
        glossaries=GlossaryStore(glossaries),
        allowed_origins=AllowedOrigins(origins, [host, *names]),
    )
    run(settings)


def _origins(sites: Sequence[str]) -> list[str]:
    """The origins of pages that may call; UsageError if one has no scheme, or a path: no page could have it."""
    origins = [site.lower() for site in sites]
    for origin in origins:
        if not re.fullmatch(r"\*|[a-z][a-z+.-]*://[^/]+", origin):
            hint = "give scheme and host, as in --cors 'https://*.example.org'"
            raise UsageError(f"{origin!r} is not the address of a site", where="--cors", hint=hint)
    return origins


def _host_names(hosts: Sequence[str]) -> list[str]:
    """The names to answer to; UsageError if one has a scheme, a port or a path: no client could send it."""
    names = [host.lower().rstrip(".") for host in hosts]
    for name in names:
        if "/" in name or ":" in name:
            hint = "give the name alone: --allow-host '*.example.org'"
            raise UsageError(f"{name!r} is not the name of a host", where="--allow-host", hint=hint)
    return names


def _default_workers(engine: str, *, num_models: int, device: str, precision: str) -> int:
    """The number of workers of each model: one on a GPU, otherwise a share of the CPUs, up to a maximum.

    On a CPU, more workers with fewer threads each translate more than fewer workers with more threads.
    """
    is_for_cpus = device == "cpu" or engine == "ctranslate2" or precision == "int8" or not devices.has_gpu_driver()
    if is_for_cpus or devices.choose_device(device).type == "cpu":
        return max(1, min(_MAX_DEFAULT_WORKERS, devices.num_cpus() // num_models))
    return 1

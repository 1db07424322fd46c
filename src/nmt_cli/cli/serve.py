"""`nmt serve`: models behind HTTP, and a page to translate on."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt_cli.cli.arguments import models_of
from nmt_cli.cli.decoding_options import takes_decoding_options
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.serving.keys import ApiKeys

# A batch takes seconds; a worker that is silent for longer than this hangs.
_MIN_BATCH_SECONDS = 60.0
_MAX_BEAM = 16
# Each has a copy of the model.
_MOST_WORKERS = 4

ModelOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model", "-m", metavar="DIR", help="Model or run, once for each language pair; else the newest under runs/."
    ),
]
HostOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is every address.")]
PortOption = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 takes a free one and says which.")]
EngineOption = Annotated[
    str, typer.Option(metavar="torch|ctranslate2|auto", help="ctranslate2 is an extra that is quick on CPUs.")
]
DeviceOption = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: a GPU if there is one.")]
PrecisionOption = Annotated[
    str, typer.Option(metavar="auto|fp32|bf16|int8", help="Of matrix products; bf16 is torch's, int8 for CPUs.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Processes with each model; else one a CPU, up to 4, and 1 on a GPU."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="CPU threads of a worker; else all CPUs but one, shared among the workers."),
]
MaxWaitOption = Annotated[
    float, typer.Option(metavar="MS", min=0, max=1000, help="Longest wait of a free worker for a batch to fill.")
]
SplitOption = Annotated[int, typer.Option(metavar="N", min=8, help="Pieces beyond which a sentence is cut.")]
QueueOption = Annotated[int, typer.Option(metavar="N", min=1, help="Sentences that may wait, for each model.")]
RequestsOption = Annotated[int, typer.Option(metavar="N", min=1, help="Requests in work at once.")]
CharactersOption = Annotated[int, typer.Option(metavar="N", min=1, help="Characters of a request.")]
TextsOption = Annotated[int, typer.Option(metavar="N", min=1, help="Texts of a request.")]
AlternativesOption = Annotated[int, typer.Option(metavar="N", min=0, max=_MAX_BEAM - 1, help="Alternatives of a text.")]
TimeoutOption = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Longest time to an answer.")]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Keys to ask for; a line each: NAME KEY REQUESTS_PER_MINUTE, or with operator at the end."
    ),
]
CorsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="A site whose pages may call the server from a browser; * is any."),
]


@takes_decoding_options(batch_tokens="--max-batch-tokens")
def serve(
    model: ModelOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    engine: EngineOption = "torch",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    max_wait_ms: MaxWaitOption = 50.0,
    split_beyond: SplitOption = 128,
    queue_size: QueueOption = 1024,
    max_requests: RequestsOption = 512,
    char_limit: CharactersOption = 10_000,
    batch_limit: TextsOption = 200,
    max_alternatives: AlternativesOption = 9,
    timeout: TimeoutOption = 30.0,
    api_key_file: KeyFileOption = None,
    cors: CorsOption = None,
    *,
    overrides: Mapping[str, Any],
) -> None:
    """Serve models over HTTP, with a page to translate on and the APIs of LibreTranslate and DeepL.

    Example: nmt serve -m runs/base --port 8000
    """
    _check_extra()
    from nmt_cli.serving.models import ModelSettings
    from nmt_cli.serving.server import ServerSettings, run
    from nmt_cli.serving.service import RequestLimits
    from nmt_cli.serving.worker import EngineSettings

    models = model or models_of(None)
    num_workers = workers or _workers(engine, num_models=len(models), device=device, precision=precision)
    settings = ServerSettings(
        models,
        host,
        port,
        model_settings=ModelSettings(
            engine=EngineSettings(engine, device, precision, threads or _share(num_workers * len(models))),
            workers=num_workers,
            max_batch_tokens=overrides.get("batch_tokens"),
            max_wait_seconds=max_wait_ms / 1000,
            queue=queue_size,
            batch_timeout_seconds=max(_MIN_BATCH_SECONDS, 2 * timeout),
            split_pieces=split_beyond,
        ),
        limits=RequestLimits(
            characters=char_limit,
            texts=batch_limit,
            sentences=queue_size,
            requests=max_requests,
            timeout_seconds=timeout,
            alternatives=max_alternatives,
            beam=_MAX_BEAM,
        ),
        keys=_keys(api_key_file),
        origins=_origins(cors or []),
    )
    run(settings)


def _origins(given: Sequence[str]) -> Sequence[str]:
    """The sites as given; UsageError if one is not written as a browser writes it."""
    for origin in given:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            hint = "give scheme and host, as in --cors https://example.org; or --cors '*' for any site"
            raise UsageError(f"{origin!r} is not the address of a site", where="--cors", hint=hint)
    return given


def _keys(path: Path | None) -> ApiKeys:
    from nmt_cli.serving.keys import ApiKeys, read_keys

    return ApiKeys([]) if path is None else read_keys(path, clock=time.monotonic)


def _workers(engine: str, *, num_models: int, device: str, precision: str) -> int:
    """Workers of each model: one on a GPU; else one a CPU, as a batch is searched at the least cost by one thread."""
    from nmt_cli.devices import choose_device, has_gpu_driver, num_cpus

    is_cpu = device == "cpu" or engine == "ctranslate2" or precision == "int8" or not has_gpu_driver()
    if is_cpu or choose_device(device).type == "cpu":
        return max(1, min(_MOST_WORKERS, num_cpus() // num_models))
    return 1


def _share(processes: int) -> int:
    """The CPU threads of each process, if one CPU is left to the server itself."""
    from nmt_cli.devices import num_cpus

    return max(1, (num_cpus() - 1) // processes)


def _check_extra() -> None:
    """Raise UsageError, with the command to install, if a library of the extra is missing."""
    try:
        from nmt_cli.serving.server import missing_library

        name = missing_library()
    except ModuleNotFoundError as problem:
        name = problem.name
    if name is not None:
        message = f"nmt serve needs {name}, which is not installed"
        raise UsageError(message, where="nmt serve", hint="pip install 'nmt-cli[serve]'")

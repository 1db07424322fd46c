"""Public test sets by name, through sacreBLEU and its cache."""

from __future__ import annotations

import difflib
import http.client
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.downloads import Unreachable
from nmt_cli.preparing.sources.kinds import LanguagePair, TestsetSource


def testset_files(source: TestsetSource, *, languages: LanguagePair) -> tuple[Path, Path]:
    """Source and first reference of a test set, downloaded if they are not cached.

    DataError names near test sets, or the pairs that one has; Unreachable says how to get it by other means.
    """
    from sacrebleu.dataset import DATASETS

    pair = f"{languages.source}-{languages.target}"
    if source.name not in DATASETS:
        near = difflib.get_close_matches(source.name, DATASETS, n=3, cutoff=0.5)
        raise DataError(
            f"sacreBLEU knows no test set {source.name}",
            where=f"kind: testset, name: {source.name}",
            hint=f"did you mean {' or '.join(near)}?" if near else "sacrebleu --list names them all",
        )
    known: Any = DATASETS[source.name]
    if pair not in known.langpairs:
        raise DataError(
            f"the test set {source.name} is not made for {pair}",
            where=f"kind: testset, name: {source.name}",
            hint=f"it has {', '.join(sorted(known.langpairs))}",
        )
    try:
        return Path(known.get_source_file(pair)), Path(known.get_reference_files(pair)[0])
    except (
        OSError,
        SystemExit,
        http.client.HTTPException,
    ) as problem:  # sacreBLEU ends the process on a wrong checksum
        reason = "its checksum is wrong" if isinstance(problem, SystemExit) else str(problem)
        raise Unreachable(
            f"cannot download the test set {source.name}: {reason}",
            where=", ".join(known.data),
            hint="check the network and the proxy variables; or copy the cache of a machine where sacrebleu has run: "
            "export SACREBLEU=FOLDER",
        ) from problem

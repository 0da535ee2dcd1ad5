"""Models on the Hugging Face hub: one question whether the model is there, then every file once, into its own cache.

transformers asks the hub for each file by itself, several times over, and tries again for half a minute where there is
no network. Here a hub id becomes a directory before anything is loaded.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.errors import ModelNotFound, PullFailed
from outrider.models.hub.gguf import brief
from outrider.models.hub.safetensors_files import INDEX, weight_files

SECONDS = 3.0
"""How long the hub may take to answer whether it has a model; ``HF_HUB_ETAG_TIMEOUT`` sets another."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,96})?")
_SMALL = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
"""Settings and tokenizers."""


def snapshot(name: str, known: Iterable[str], *, code: bool = False) -> Path:
    """The directory of a model on the hub, fetched first where that is needed; with its ``code`` where that may run.

    Where the hub does not answer, what was fetched before is used. ``known`` are the short names to suggest from.
    """
    if not _ID.fullmatch(name):
        raise _missing(name, known, "it is not a hub id either")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        # No retries: a name that is mistyped is told at once.
        info = HfApi().model_info(name, timeout=float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or SECONDS))
    except GatedRepoError as error:
        raise PullFailed(f"model {name!r}: the hub asks for its terms to be accepted; run: hf auth login") from error
    except RepositoryNotFoundError as error:
        raise _missing(name, known, "the hub has no such model, or only for others (hf auth login)") from error
    except HfHubHTTPError as error:
        return _fetched_before(name, known, brief(error))
    except Exception as error:  # a network has many ways to fail, and the hub's client changes its classes
        offline = "HF_HUB_OFFLINE is set" if "offline" in type(error).__name__.lower() else brief(error)
        return _fetched_before(name, known, offline)
    return _fetch(name, info, code)


def _fetch(name: str, info: Any, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    names = {file.rfilename for file in info.siblings or ()}
    small = [*_SMALL, "*.py"] if code else _SMALL
    options: dict[str, Any] = {"revision": info.sha, "ignore_patterns": ["*/*"]}
    try:
        with Console(stderr=True).status(f"Fetching {name} from the hub (once)"):
            folder = Path(snapshot_download(name, allow_patterns=small, **options))
            if INDEX in names:  # of other files beside it none is needed
                weights = [file.name for file in weight_files(folder)]
            else:
                weights = ["model.safetensors" if "model.safetensors" in names else "*.safetensors"]
            return Path(snapshot_download(name, allow_patterns=[*small, *weights], **options))
    except OSError as error:
        raise PullFailed(f"model {name!r} cannot be fetched from the hub ({brief(error)}); try again") from error


def _fetched_before(name: str, known: Iterable[str], why: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=[*_SMALL, "*.safetensors"]))
    except (OSError, ValueError) as error:
        raise _missing(name, known, f"the hub cannot be asked ({why})") from error


def _missing(name: str, known: Iterable[str], hub: str) -> ModelNotFound:
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known names: {', '.join(names)}"
    return ModelNotFound(f"model {name!r} is no known name, directory or .gguf file, and {hub}; {hint}")

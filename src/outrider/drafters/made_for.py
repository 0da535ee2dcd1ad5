"""Whether a draft was made for the target at hand: by a fingerprint of its weights, or else by the name it gives."""

from __future__ import annotations

import warnings
from pathlib import PurePosixPath

from outrider.drafters.published import PublishedConfig
from outrider.errors import require
from outrider.models.hub.gguf import KNOWN
from outrider.models.hub.loading import Loaded
from outrider.models.transformers.fingerprint import fingerprint

_CACHED = "models--"
"""What the hub's cache calls the directory of a model: ``models--Qwen--Qwen3-8B``, with a folder for each revision."""

_FILE = ".gguf"
"""Names of such files go on with the format of their weights: qwen3-8b-q4_k_m.gguf."""


def check_fingerprint(draft: str, made_for: str, target: Loaded) -> None:
    """Refuse a draft of other weights. ``made_for``: the fingerprint it was trained for, "" where none is known."""
    require(
        not made_for or made_for == fingerprint(target.model),
        f"draft {draft} was trained for another target than {target.name!r}; train one with `outrider distill`",
    )


def check_target(draft: str, config: PublishedConfig, target: Loaded) -> None:
    """Refuse a head whose fingerprint is another target's; without one, warn where it names another target."""
    check_fingerprint(draft, config.fingerprint, target)
    if config.fingerprint or not config.target_name or same_model(config.target_name, target.name):
        return
    warnings.warn(
        f"draft {draft} was made for {config.target_name}, and the target is {target.name}: where these are different "
        "weights, few guesses are kept (the text is right all the same); use a draft for this very target",
        stacklevel=2,
    )


def same_model(one: str, other: str) -> bool:
    """Whether two names can mean the same model: hub ids and directories by their last part, .gguf files by its start.

    Directories of the same weights are named differently on other machines, so this can only be a hint.
    """
    a, b = model_name(one), model_name(other)
    return a == b or any(file.endswith(_FILE) and file.startswith(name) for file, name in ((a, b), (b, a)))


def model_name(name: str) -> str:
    """The last part of a hub id or a path, in small letters."""
    if name in KNOWN:
        name = KNOWN[name].title
    path = PurePosixPath(name.replace("\\", "/"))
    cached = [part for part in path.parts if part.startswith(_CACHED)]
    return (cached[-1].rsplit("--", 1)[-1] if cached else path.name).lower()

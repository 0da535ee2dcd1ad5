"""Turns ``draft=`` into a drafter: built-in names, the user's classes, trained directories, models, chains."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from outrider.core.protocols import Drafter
from outrider.drafters import Cascade, Copying, Mixture, ModelDrafter, built_in
from outrider.drafters.head import CONFIG, HeadDrafter
from outrider.drafters.imported import imported, names_a_class
from outrider.errors import BadOption, require
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading, pairs
from outrider.models.transformers import trimmed
from outrider.models.transformers.fingerprint import fingerprint

_CHAIN = re.compile(r"(?P<lower>.*[^>])(?P<link>>{1,2})(?P<middle>[^>]+)")


@dataclass(frozen=True)
class Beside:
    """What a draft is loaded for: the target, its dtype, and whether code that comes with a model may run."""

    target: loading.Loaded
    dtype: str
    trust: bool


def check_draft(draft: object) -> None:
    """Refuse what names no drafter and is none."""
    rule = "draft must be a name or have `name` and `start`"
    require(draft is None or isinstance(draft, (str, Drafter)), f"{rule}, got {draft!r}")
    require(draft != "", f"{rule}, got ''; leave it out for 'auto', or give 'none'")
    if isinstance(draft, type):
        raise BadOption(f"{rule}, got the class {draft.__name__}; give an instance, as {draft.__name__}()")


def drafter_named(draft: str | Drafter | None, beside: Beside) -> Drafter:
    """A drafter for this target. ``a>b`` is b drafting for the target with a drafting for b; ``a>>b`` asks a once."""
    check_draft(draft)
    if not isinstance(draft, str) and draft is not None:
        return draft
    if draft is not None and ">" in draft:
        return _chain(draft, beside)
    known = built_in()
    if draft == "auto" and pairs.draft_of(beside.target.name) is not None:
        draft = beside.target.name
    if draft == "auto" and (head := shipped_draft(beside.target)) is not None:
        return Mixture(Copying(), head)
    if draft is None or draft in known:
        return known[draft or "none"]
    if names_a_class(draft) and not Path(draft).exists():
        return imported(draft)
    require(not draft.endswith(".py"), f"draft {draft!r} is a file of Python: name the class in it, as {draft}:Class")
    if (Path(draft) / CONFIG).is_file():
        return _trained(Path(draft), beside.target)
    near = difflib.get_close_matches(draft, known, n=1)
    if near and "/" not in draft and not Path(draft).exists():
        raise BadOption(f"draft {draft!r} is not known; did you mean {near[0]!r}? Built in: {', '.join(known)}")
    return _model(draft, beside)[0]


def _chain(draft: str, beside: Beside) -> Drafter:
    parts = _CHAIN.fullmatch(draft)
    if parts is None:
        raise BadOption(f"draft {draft!r} is not a chain: write LOWER>MODEL, for instance 'copy>my-draft'")
    middle, name = parts["middle"].strip(), parts["lower"].strip()
    own = middle in built_in() or names_a_class(middle)
    require(not own, f"draft {draft!r}: {middle!r} cannot check guesses; put a model after '>'")
    once = parts["link"] == ">>"
    if not (Path(middle) / CONFIG).is_file():
        drafter, loaded = _model(middle, beside)
        return Cascade(drafter_named(name, Beside(loaded, beside.dtype, beside.trust)), drafter, once=once)
    trained = _trained(Path(middle), beside.target)
    if not isinstance(trained, ModelDrafter):
        raise BadOption(
            f"draft {draft!r}: {middle!r} is a head, which reads the target's activations and cannot run by itself; "
            "put a model after '>' (outrider distill --kind model)"
        )
    # A model trained for the target has no head of its own, and what is drafted for it speaks the target's tokens.
    lower = built_in()["auto"] if name == "auto" else drafter_named(name, beside)
    require(
        not isinstance(lower, HeadDrafter),
        f"draft {draft!r}: {name!r} is a head of the target and cannot draft for {middle!r}",
    )
    return Cascade(lower, trained, once=once)


def _model(name: str, beside: Beside) -> tuple[ModelDrafter, loading.Loaded]:
    partner = pairs.draft_of(name)  # as a draft, the name of a pair means the draft in it
    found, shown = (name, name) if partner is None else (str(partner), f"{Path(name).name} draft")
    # A guess is a run of one row; with an encoder, sources of many rows are run together.
    # An engine that was asked for is the target's: it may not be one for the draft.
    engine = "torch" if beside.target.kernels.engine == "torch" else "auto"
    kernels = Kernels(engine, rows=2 if beside.target.model.encoder_decoder else 1, release=True)
    loaded = loading.load(found, str(beside.target.model.device), beside.dtype, beside.trust, kernels)
    loading.check_same_tokens(beside.target, loaded)
    return ModelDrafter(loaded.model, name=shown), loaded


def shipped_draft(target: loading.Loaded) -> Drafter | None:
    """The draft that comes with the package for these very weights, if there is one."""
    if target.model.hidden_size is None or target.model.encoder_decoder:
        return None
    name = fingerprint(target.model)
    for folder in sorted((Path(__file__).parents[1] / "data" / "drafts").glob("*")):
        if (folder / CONFIG).is_file() and json.loads((folder / CONFIG).read_text("utf-8"))["fingerprint"] == name:
            return HeadDrafter.load(folder, f"{folder.name} head").beside(target.model.facts.weights_read)
    return None


def _trained(folder: Path, target: loading.Loaded) -> Drafter:
    """A draft made by ``outrider distill``, beside the target it was made for."""
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    ours = fingerprint(target.model)
    require(
        config.get("fingerprint", ours) == ours,
        f"draft {folder} was trained for another target than {target.name!r}; train one with `outrider distill`",
    )
    if config["kind"] == "model":
        return ModelDrafter(trimmed.load(folder, target.model), name=folder.name, gamma=config.get("gamma"))
    return HeadDrafter.load(folder).beside(target.model.facts.weights_read)

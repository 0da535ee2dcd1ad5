"""Turns ``draft=`` into a drafter: built-in names, the user's classes, trained directories, models, chains."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.core.protocols import Drafter
from outrider.drafters import (
    BUILT_IN,
    Cascade,
    Copying,
    Mixture,
    ModelDrafter,
    OutputMemory,
    Suffix,
    SuffixIndex,
    suffix_index,
)
from outrider.drafters.head import CONFIG, HeadDrafter
from outrider.drafters.imported import imported, names_a_class
from outrider.drafters.made_for import check_fingerprint, check_target
from outrider.drafters.model_cost import kept_sampled_cost
from outrider.drafters.other_tokenizer import OtherTokenizerDrafter
from outrider.drafters.public_drafts import tell_of_public_draft
from outrider.drafters.published import PublishedDrafter, is_checkpoint
from outrider.errors import BadOption, ModelNotFound, TokenizerMismatch, require
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading, names, pairs
from outrider.models.hub.plain_settings import has_encoder
from outrider.models.hub.shared_tokens import shared_tokens
from outrider.models.transformers import trimmed
from outrider.models.transformers.fingerprint import fingerprint

_CHAIN = re.compile(r"(?P<lower>.*[^>])(?P<link>>{1,2})(?P<middle>[^>]+)")

_OWN_TEXTS = "suffix:"

HEAD = "head"
"""As ``draft=``: the head that comes with the package for the target, by itself."""


@dataclass(frozen=True)
class Beside:
    """What a draft is loaded for: the target, its dtype, whether code that comes with a model may run, and a memory."""

    target: loading.Loaded
    dtype: str
    trust: bool
    memory: OutputMemory | None = None  # earlier outputs, for drafters that search them


def check_draft(draft: object) -> None:
    """Refuse what names no drafter and is none, as far as that shows before a model is loaded."""
    rule = "draft must be a name or have `name` and `start`"
    require(draft is None or isinstance(draft, (str, Drafter)), f"{rule}, got {draft!r}")
    require(draft != "", f"{rule}, got ''; leave it out for 'auto', or give 'none'")
    if isinstance(draft, type):
        raise BadOption(f"{rule}, got the class {draft.__name__}; give an instance, as {draft.__name__}()")
    if isinstance(draft, str):
        _check_name(draft)


def _check_name(draft: str) -> None:
    """What is wrong with a name whatever the target is."""
    if ">" in draft:
        check_draft(_links(draft)["lower"].strip())
        return
    require(draft != _OWN_TEXTS, f"draft {draft!r} names no index; write suffix:DIR, or 'suffix' to search rows alone")
    require(not draft.endswith(".py"), f"draft {draft!r} is a file of Python: name the class in it, as {draft}:Class")
    if draft == HEAD or draft in BUILT_IN or searches_suffixes(draft) or names_a_class(draft) or Path(draft).exists():
        return
    near = difflib.get_close_matches(draft, BUILT_IN, n=1)
    if near and "/" not in draft:
        raise BadOption(f"draft {draft!r} is not known; did you mean {near[0]!r}? Built in: {', '.join(BUILT_IN)}")


def _links(draft: str) -> re.Match[str]:
    """A chain in its parts: ``lower``, ``link`` and ``middle``."""
    parts = _CHAIN.fullmatch(draft)
    if parts is None:
        raise BadOption(f"draft {draft!r} is not a chain: write LOWER>MODEL, for instance 'copy>my-draft'")
    middle = parts["middle"].strip()
    own = middle == HEAD or middle in BUILT_IN or names_a_class(middle) or searches_suffixes(middle)
    require(not own, f"draft {draft!r}: {middle!r} cannot check guesses; put a model after '>'")
    return parts


def drafter_named(draft: str | Drafter | None, beside: Beside) -> Drafter:
    """A drafter for this target. ``a>b`` is b drafting for the target with a drafting for b; ``a>>b`` asks a once."""
    check_draft(draft)
    if not isinstance(draft, str) and draft is not None:
        return draft
    if draft is not None and ">" in draft:
        return _chain(draft, beside)
    if draft == "auto" and pairs.draft_of(beside.target.name) is not None:
        draft = beside.target.name
    if draft == "auto" and (head := shipped_draft(beside.target)) is not None:
        return Mixture(Copying(), head)
    if draft == "auto":
        tell_of_public_draft(beside.target.name)
    if draft == HEAD:
        return _shipped_head(beside.target)
    if draft is not None and searches_suffixes(draft):
        return _suffix(draft, beside)
    if draft is None or draft in BUILT_IN:
        return BUILT_IN[draft or "none"]()
    if names_a_class(draft) and not Path(draft).exists():
        return imported(draft)
    if (Path(draft) / CONFIG).is_file():
        return _trained(Path(draft), beside.target)
    published = _published_head(draft, beside.trust)
    if published is not None:
        drafter = PublishedDrafter.load(published, Path(draft).name).beside(beside.target.model.facts)
        check_target(draft, drafter.config, beside.target)
        return drafter
    return _model(draft, beside)[0]


@contextmanager
def _listing_drafters(draft: str) -> Iterator[None]:
    """A name that is no model may have been meant for a drafter that needs none: say which there are."""
    try:
        yield
    except ModelNotFound as error:
        raise ModelNotFound(f"draft {draft!r} is not built in ({', '.join(BUILT_IN)}); {error}") from error


def _published_head(draft: str, trust: bool) -> Path | None:
    """The directory of a head that others have trained, fetched where a hub id names it; None: it is no such head."""
    place = Path(draft).expanduser()
    if "/" in draft and not place.exists():
        with _listing_drafters(draft):
            place = names.directory(draft, code=trust)
    return place if is_checkpoint(place) else None


def searches_suffixes(draft: object) -> bool:
    """Whether a name means suffix memory: ``suffix``, ``suffix:DIR``, or the DIR of an index."""
    if not isinstance(draft, str) or ">" in draft:
        return False
    return draft == "suffix" or draft.startswith(_OWN_TEXTS) or (Path(draft) / suffix_index.CONFIG).is_file()


def _suffix(draft: str, beside: Beside) -> Suffix:
    if draft == "suffix":
        return Suffix(memory=beside.memory)
    folder = Path(draft.removeprefix(_OWN_TEXTS))
    index = SuffixIndex.load(folder, beside.target.tokenizer)
    return Suffix(index, beside.memory, name=f"{_OWN_TEXTS}{folder.name}")


def _chain(draft: str, beside: Beside) -> Drafter:
    parts = _links(draft)
    middle, name = parts["middle"].strip(), parts["lower"].strip()
    once = parts["link"] == ">>"
    published = _published_head(middle, beside.trust) is not None
    if not published and not (Path(middle) / CONFIG).is_file():
        drafter, loaded = _model(middle, beside)
        if not isinstance(drafter, ModelDrafter):
            raise BadOption(
                f"draft {draft!r}: {middle!r} has another tokenizer than target {beside.target.name!r}, so it cannot "
                f"check guesses of the target's tokens; use it alone, draft={middle!r}"
            )
        return Cascade(drafter_named(name, Beside(loaded, beside.dtype, beside.trust)), drafter, once=once)
    trained = None if published else _trained(Path(middle), beside.target)
    if not isinstance(trained, ModelDrafter):
        raise BadOption(
            f"draft {draft!r}: {middle!r} is a head, which reads the target's activations and cannot run by itself; "
            "put a model after '>' (outrider distill --kind model)"
        )
    # A model trained for the target has no head of its own, and what is drafted for it speaks the target's tokens.
    lower = BUILT_IN["auto"]() if name == "auto" else drafter_named(name, beside)
    require(
        not isinstance(lower, (HeadDrafter, PublishedDrafter)),
        f"draft {draft!r}: {name!r} is a head of the target and cannot draft for {middle!r}",
    )
    return Cascade(lower, trained, once=once)


def _model(name: str, beside: Beside) -> tuple[ModelDrafter | OtherTokenizerDrafter, loading.Loaded]:
    """A model as drafter; with another tokenizer than the target's it guesses what both can write."""
    partner = pairs.draft_of(name)  # as a draft, the name of a pair means the draft in it
    found, shown = (name, name) if partner is None else (str(partner), f"{Path(name).name} draft")
    # A guess is a run of one row; with an encoder, sources of many rows are run together.
    # An engine that was asked for is the target's: it may not be one for the draft.
    engine = "torch" if beside.target.kernels.engine == "torch" else "auto"
    kernels = Kernels(engine, rows=2 if beside.target.model.encoder_decoder else 1, release=True)
    with _listing_drafters(name):
        if (
            encodes := has_encoder(names.directory(found, code=beside.trust))
        ) is not None:  # before it is compiled and measured
            loading.check_same_kind(beside.target, shown, encodes)
        loaded = loading.load(found, str(beside.target.model.device), beside.dtype, beside.trust, kernels)
    loading.check_same_kind(beside.target, shown, loaded.model.encoder_decoder)
    if loading.same_tokens(beside.target, loaded):
        return ModelDrafter(loaded.model, name=shown, sampled_cost=kept_sampled_cost(loaded, beside.target)), loaded
    target = beside.target
    require(
        not target.model.encoder_decoder,
        f"draft {shown!r} has another tokenizer than target {target.name!r}, and encoder-decoder models must share "
        "one, since both read the source; choose a draft of the same family, or draft='copy'",
        TokenizerMismatch,
    )
    shared = shared_tokens((target.name, target.tokenizer), (shown, loaded.tokenizer))
    return OtherTokenizerDrafter(loaded.model, shared, name=shown), loaded


def shipped_draft(target: loading.Loaded) -> Drafter | None:
    """The draft that comes with the package for these very weights, if there is one."""
    if target.model.hidden_size is None or target.model.encoder_decoder:
        return None
    name = fingerprint(target.model)
    for folder in sorted((Path(__file__).parents[1] / "data" / "drafts").glob("*")):
        if (folder / CONFIG).is_file() and json.loads((folder / CONFIG).read_text("utf-8"))["fingerprint"] == name:
            return HeadDrafter.load(folder, f"{folder.name} head").beside(target.model.facts)
    return None


def _shipped_head(target: loading.Loaded) -> Drafter:
    head = shipped_draft(target)
    if head is None:
        raise BadOption(
            f"draft {HEAD!r}: no head comes with the package for target {target.name!r}; train one with `outrider "
            f"distill`, name a directory of that name as './{HEAD}', or leave draft out"
        )
    return head


def drafts_for(target: loading.Loaded) -> list[str]:
    """The names of all drafters there are for this target without anything of the user's, "auto" first."""
    head = [HEAD] if shipped_draft(target) is not None else []
    pair = [target.name] if pairs.draft_of(target.name) is not None else []
    return ["auto", *head, *pair, *(name for name in BUILT_IN if name not in ("auto", "uniform", "none"))]


def _trained(folder: Path, target: loading.Loaded) -> Drafter:
    """A draft made by ``outrider distill``, beside the target it was made for."""
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    check_fingerprint(str(folder), config.get("fingerprint", ""), target)
    if config["kind"] == "model":
        return ModelDrafter(trimmed.load(folder, target.model), name=folder.name, gamma=config.get("gamma"))
    return HeadDrafter.load(folder).beside(target.model.facts)

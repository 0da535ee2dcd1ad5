"""The files of a published head: read in the speculators format or as plain repositories have them, and written."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.drafters.published import kinds
from outrider.drafters.published.config import PublishedConfig
from outrider.drafters.published.head import PublishedHead
from outrider.drafters.published.heads import made
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound, require
from outrider.models.hub.safetensors_files import read_json, weight_files
from outrider.runtime.files import replace_whole, write_whole

_CONFIG = "config.json"
_PICKLED = "pytorch_model.bin"
_EMBEDDING = "embed_tokens.weight"

_OUTPUT = "lm_head.weight"
_ROWS = (_OUTPUT, "markov_head.markov_w2.weight")
"""Tensors with a row for every token that the head can draft."""

_NOT_OURS = ("verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")
"""Tensors that only training reads, or that follow from the config."""


def is_checkpoint(folder: Path) -> bool:
    """Whether a directory holds a draft of the speculators format, of whatever kind, or a plain EAGLE-3 head."""
    if not (folder / _CONFIG).is_file():
        return False
    try:
        return kinds.names_a_head(json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False  # said by whoever reads it as a model


def read(folder: Path) -> tuple[PublishedHead, Tensor]:
    """A head, and the target's tokens [N], ascending, that its logits are of."""
    settings = read_json(folder / _CONFIG)
    try:
        config = kinds.parse(settings)
    except (BadOption, KeyError, TypeError) as error:
        raise BadOption(f"draft {folder}: {_CONFIG}: {error}; use another draft") from error
    given = {_renamed(name): tensor for name, tensor in _tensors(folder).items()}
    given = {name: tensor for name, tensor in given.items() if not name.endswith(_NOT_OURS)}
    tokens = _tokens(folder, config, given.pop("d2t", None), given.pop("t2d", None))
    embedding = given.pop(_EMBEDDING, None)
    with torch.device("meta"):  # shapes alone
        head = made(config)
    if head.reads_the_targets:  # whatever a checkpoint has of the target's, the target has
        embedding = None
        if head.lm_head is None:
            given.pop(_OUTPUT, None)
    _check_shapes(folder, head, given, embedding)
    order = tokens.argsort()
    if (order.diff() != 1).any():
        given |= {name: given[name][order] for name in _ROWS if name in given}
    head.load_state_dict(given, assign=True)
    head.own_embedding = embedding
    return head, tokens[order]


def write(head: PublishedHead, tokens: Tensor, folder: Path) -> None:
    """A head in the speculators format, as vLLM and the speculators package read it."""
    config = head.config
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    if head.own_embedding is not None:
        weights[_EMBEDDING] = head.own_embedding.cpu().contiguous()
    if config.draft_vocab_size != config.vocab_size:
        weights["d2t"] = tokens.cpu() - torch.arange(len(tokens))
        weights["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, tokens.cpu(), True)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    made = file.with_suffix(".partial")  # a new file: another process may have mapped the old one
    save_file(weights, str(made), metadata={"format": "pt"})
    replace_whole(made, file)
    settings = config.for_speculators() | {"dtype": str(next(head.parameters()).dtype).removeprefix("torch.")}
    write_whole(folder / _CONFIG, json.dumps(settings, indent=2) + "\n")


def _renamed(name: str) -> str:
    """The names of the speculators format: plain repositories call the layer midlayer."""
    name = name.removeprefix("model.")
    return name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name


def _tensors(folder: Path) -> dict[str, Tensor]:
    files = weight_files(folder)
    try:
        if files:
            return {name: tensor for file in files for name, tensor in load_file(str(file)).items()}
        pickled = folder / _PICKLED
        require(pickled.is_file(), f"draft {folder}: there is no model.safetensors; get it again", ModelNotFound)
        found: Any = torch.load(pickled, map_location="cpu", weights_only=True, mmap=True)
        return {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    except ModelNotFound:
        raise
    except pickle.UnpicklingError as error:
        raise ModelCorrupt(
            f"draft {folder}: {_PICKLED} holds more than tensors, and none of it is run; save it as model.safetensors"
        ) from error
    except (SafetensorError, OSError, RuntimeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelCorrupt(
            f"draft {folder}: its weights cannot be read ({reason}); get it again, or save it as model.safetensors"
        ) from error


def _tokens(folder: Path, config: PublishedConfig, d2t: Tensor | None, t2d: Tensor | None) -> Tensor:
    """The target's token of each of the head's logits [N]: d2t holds how far it lies above its place."""
    count, all_of_them = config.draft_vocab_size, config.vocab_size
    place = torch.arange(count)
    if d2t is None:
        require(
            count == all_of_them,
            f"draft {folder}: d2t is missing, which maps its {count} tokens to the target's {all_of_them}; get it "
            "again",
            ModelCorrupt,
        )
        return place
    remedy = "get the draft again"
    require(
        d2t.shape == (count,),
        f"draft {folder}: d2t has shape {tuple(d2t.shape)}, and draft_vocab_size is {count}; {remedy}",
        ModelCorrupt,
    )
    tokens = d2t.to(torch.int64) + place
    least, most, distinct = int(tokens.min()), int(tokens.max()), len(set(tokens.tolist()))
    require(
        least >= 0 and most < all_of_them and distinct == count,
        f"draft {folder}: d2t maps {count} tokens to {distinct} from {least} to {most}, and the target's vocabulary "
        f"has {all_of_them}; {remedy}",
        ModelCorrupt,
    )
    if t2d is not None:
        marked = t2d.reshape(-1).to(torch.bool).nonzero()[:, 0]
        require(
            t2d.shape == (all_of_them,) and torch.equal(marked, tokens.sort().values),
            f"draft {folder}: t2d, of shape {tuple(t2d.shape)} with {len(marked)} tokens, and d2t name different "
            f"tokens; {remedy}",
            ModelCorrupt,
        )
    return tokens


def _check_shapes(folder: Path, head: PublishedHead, given: Mapping[str, Tensor], embedding: Tensor | None) -> None:
    config = head.config
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in given.items()}
    if embedding is not None:
        wanted[_EMBEDDING], found[_EMBEDDING] = (config.vocab_size, config.hidden_size), tuple(embedding.shape)
    missing, further = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    require(not missing, f"draft {folder}: tensors are missing: {_listed(missing)}; get it again", ModelCorrupt)
    require(
        not further,
        f"draft {folder}: has tensors that its config does not ask for: {_listed(further)}; use another draft",
    )
    for name, shape in wanted.items():
        require(
            found[name] == shape,
            f"draft {folder}: {name} has shape {found[name]}, and its config says {shape}; get it again",
            ModelCorrupt,
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

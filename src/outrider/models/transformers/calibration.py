"""Runs a checkpoint over a little text and tells, layer by layer, how the inputs of its products go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from outrider.models.engine.weight_files import check_shape
from outrider.models.hub.safetensors_files import sizes
from outrider.models.settings import setting

TEXT = Path(__file__).parents[2] / "data" / "calibration.txt"
"""English and Python, written for this package."""

_TOKENS, _ROW = 4096, 512

Take = Callable[[str, Tensor], None]
"""What is told: a module's name, and the sums of products of its inputs [in, in] over all tokens."""


def needed_bytes(source: Path) -> float:
    """Memory that ``run`` takes: the whole model in float32, and what one layer is given."""
    return 1.3 * 4 * sum(sizes(source))


def run(source: Path, modules: Sequence[str], take: Take) -> None:
    """Tell of each module as soon as the layer it is in has run; memory is needed for one layer's sums at a time."""
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.float32, "use_safetensors": True, "ignore_mismatched_sizes": True}
    model, told = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
    for name, found, wanted in told["mismatched_keys"]:
        check_shape(name, tuple(found), tuple(wanted))
    model.eval()
    rows = read_tokens(source, model.config)
    layers: dict[str, list[str]] = {}
    for module in modules:
        layers.setdefault(module.partition(".layers.")[2].partition(".")[0], []).append(module)
    body = model.model
    with Progress(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("Quantising layers (once)", total=len(layers))
        for number, layer in enumerate(body.layers):
            sums: dict[str, Tensor] = {}
            for name in layers.get(str(number), []):
                model.get_submodule(name).register_forward_pre_hook(partial(_add, sums, name))
            layer.register_forward_hook(partial(_told, sums, take, lambda: bar.advance(shown)))
        with torch.no_grad():
            body(rows, use_cache=False)


def read_tokens(source: Path, config: Any) -> Tensor:
    """Rows of the text, without tokens the model does not know. Without a tokenizer it reads its tokens in turn."""
    from transformers import AutoTokenizer

    try:
        ids = AutoTokenizer.from_pretrained(source).encode(TEXT.read_text(encoding="utf-8"), verbose=False)
    except (OSError, ValueError):
        ids = []
    known = [token for token in ids if token < config.vocab_size][:_TOKENS]
    read = known or [place % config.vocab_size for place in range(_TOKENS)]
    row = min(_ROW, len(read), setting(config, "max_position_embeddings") or _ROW)
    return torch.tensor(read[: len(read) // row * row]).view(-1, row)


def _add(sums: dict[str, Tensor], name: str, module: Any, given: tuple[Tensor, ...]) -> None:
    inputs = given[0].flatten(0, -2)
    sums[name] = inputs.T @ inputs


def _told(
    sums: dict[str, Tensor], take: Take, done: Callable[[], Any], module: Any, given: tuple[Any, ...], output: Any
) -> None:
    for name in list(sums):
        take(name, sums.pop(name))
    done()

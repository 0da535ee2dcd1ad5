"""A family that no test covers is compared with itself when it is loaded: row by row against one plain forward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outrider.core.protocols import Session, Shape
from outrider.models.transformers.engine import TransformersEngine

_SHORT = 9
_BEYOND = 9
"""Tokens past the end of an attention window, so that the last positions look at less than everything."""

AFFORDABLE = {"cpu": 2e11, "cuda": 5e13}
"""Parameters times tokens: seconds of arithmetic, not minutes."""

_CHUNK = 32
_WIDTH = 5


@torch.no_grad()
def check_against_itself(engine: TransformersEngine, start: Callable[[int, Shape], Session]) -> None:
    """Refuse a model whose per-row logits are not those of its own forward; warn where a window stays unseen."""
    facts, length = engine.facts, _length(engine)
    ids = (torch.arange(length, device=facts.device) * 7 + 3)[None] % facts.vocab_size
    source = ids[:, :4] if facts.encoder_decoder else None
    expected = _plain(engine, ids, source)  # [W, V]
    row_prompts = (ids[0, : length - _WIDTH + 1], ids[0, : length - _WIDTH])  # two rows, one token apart
    capacity = _CHUNK * (2 + length // _CHUNK)
    session = start(2, Shape(capacity, _WIDTH, source_capacity=8, chunk=min(_CHUNK, max(2, length // 4))))
    try:
        for row, prompt in enumerate(row_prompts):
            session.admit(row, prompt.tolist(), None if source is None else source[0].tolist())
        tails = torch.stack([ids[0, length - _WIDTH + 1 :], ids[0, length - _WIDTH : -1]])  # [2, W - 1]
        found = session.score(tails).float()
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        raise engine.unusable(error) from error
    worst = float((torch.cat([found[0], found[1, 1:]]) - torch.cat([expected, expected[:-1]])).abs().max())
    if not worst <= 0.02 * float(expected.abs().max()) + 1e-3:
        raise engine.unusable(f"logits off by {worst:.3g}")


def _plain(engine: TransformersEngine, ids: Tensor, source: Tensor | None) -> Tensor:
    """Logits of the last positions from one ordinary forward -> [W, V]."""
    read: dict[str, Any] = {"input_ids": ids}
    if source is not None:
        read = {"input_ids": source, "decoder_input_ids": ids}
    if "logits_to_keep" in engine.accepts:
        read["logits_to_keep"] = _WIDTH
    logits: Tensor = engine.model(**read).logits[0, -_WIDTH:]
    return logits.float()


def _length(engine: TransformersEngine) -> int:
    """Past the widest window that can matter, where that is affordable; else short, and said so."""
    limit = engine.facts.max_length
    windows = [w for w in _windows(engine.config) if limit is None or w + _BEYOND <= limit]
    wanted = max([_SHORT, *(w + _BEYOND for w in windows)])
    size = sum(p.numel() for p in engine.model.parameters())
    if wanted * size <= AFFORDABLE.get(engine.facts.device.type, AFFORDABLE["cpu"]):
        return wanted
    warnings.warn(
        f"{type(engine.model).__name__} is of a family that is not tested here; it was compared with its own forward "
        f"over {_SHORT} tokens only, so attention windows of {max(windows)} tokens were not checked: compare a text "
        "longer than that with transformers' own generate before you rely on it",
        stacklevel=4,
    )
    return _SHORT


def _windows(config: Any) -> list[int]:
    """Every number in a config that names a window; a family unknown here may spell it in its own way."""
    return [
        value
        for name, value in config.to_dict().items()
        if "window" in name and "layer" not in name and isinstance(value, int) and not isinstance(value, bool)
    ]

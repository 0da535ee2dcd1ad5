"""Arithmetic of a token, by the weights that it is multiplied with: c^ of Theorem 3.11."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter
from outrider.drafters import Copying, Mixture, ModelDrafter, Ngram
from outrider.drafters.head import HeadDrafter
from outrider.llm import LLM
from outrider.models.hub import pairs

_LOOKED_UP = ("embed", "shared", "wte", "wpe", "relative_attention_bias")
"""Parts of names of weights that a token reads a row of."""


def weights_of_a_file(file: Path) -> int:
    """Of all matrices that a token of a decoder is multiplied with, the output table included once."""
    with safe_open(str(file), framework="pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    matrices: dict[str, int] = {name: shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2}
    tables = [size for name, size in matrices.items() if any(part in name for part in _LOOKED_UP)]
    inside = sum(
        size for name, size in matrices.items()
        if not name.startswith("encoder.") and not any(part in name for part in _LOOKED_UP)
    )  # fmt: skip
    shared = max(tables, default=0) if not any("lm_head" in name for name in matrices) else 0
    return inside + shared


def share_of_a_guess(target: str, llm: LLM, drafter: Drafter) -> float | None:
    """Operations of a guess over those of a token of the target; None where weights cannot be counted.

    Looking something up is no arithmetic.
    """
    if isinstance(drafter, (Copying, Ngram)):
        return 0.0
    folder = pairs.find(target)
    if isinstance(drafter, ModelDrafter) and folder is not None:
        draft, whole = (weights_of_a_file(folder / part / "model.safetensors") for part in ("draft", "target"))
        return draft / whole
    if isinstance(drafter, Mixture):  # at most: its copies take none
        return share_of_a_guess(target, llm, drafter.second)
    read = facts_of(llm.target.model).weights_read
    if isinstance(drafter, HeadDrafter) and read is not None:
        return drafter.weights_read / read
    return None

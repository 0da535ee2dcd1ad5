"""The drafter of a trained head: loading and saving it, what a guess costs, and its sessions.

A feature head is a small recurrent network that runs once per guess, at first on the outputs of the target's layers,
then on its own states; with attention it also reads the text so far. A blockwise head guesses k tokens from one state
of the target with k blocks (Stern et al. 2018), so a whole draft costs no sequential run at all. Both have logits for
the N most frequent tokens only: the output layer is most of a head's cost, and q = 0 elsewhere is still exact.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.model_facts import ModelFacts
from outrider.core.protocols import DraftSession, Session, Shape
from outrider.core.traits import DrafterTraits
from outrider.drafters.head.choice import choose
from outrider.drafters.head.config import HeadConfig
from outrider.drafters.head.layers import Head
from outrider.drafters.head.prepared import PreparedHead
from outrider.drafters.head.session import HeadSession
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound, require
from outrider.runtime.files import replace_whole, write_whole

CONFIG = "outrider_draft.json"

_TIME_PER_WEIGHT = {"numba": 0.8, "numpy": 1.6, "torch": 1.6, "triton": 1.6}
"""What a guess takes for each weight it reads, by backend, where a run of the target takes one in 16 bits.

numba reads bytes: 0.5 on two cores of a Neoverse-N1 (``recipes/draft_cost.py``), 0.8 on those of a Xeon with AMX.
"""

_SAMPLED = 1.5
"""How much longer a guess takes that is drawn, and verified by its distribution; on that Xeon."""

_BITS = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0, "int8": 8.5, "int4": 5.0}


def _quicker(weight_format: str) -> float:
    """What a weight of the target takes against one in 16 bits: not all of a run is reading. Four bits took 0.53."""
    packed = re.match(r"I?Q(\d)", weight_format)
    bits = float(packed[1]) + 1 if packed else _BITS.get(weight_format, 16.0)
    return 0.3 + 0.7 * bits / 16


class HeadDrafter:
    """A trained head as a drafter. ``tokens`` [N] are the tokens it can draft.

    It stops where, by its own confidence, its guesses so far are all right with a chance below ``floor``, or, where a
    policy tells it what guesses cost, with a chance that is not worth another one.
    """

    cost = DrafterTraits.cost  # of a guess for one row; see ``beside``

    def __init__(self, head: Head, tokens: Tensor, name: str = "head", floor: float = 0.1) -> None:
        self.saved, self.tokens, self.name = head.eval().requires_grad_(False), tokens, name
        require(0 <= floor < 1, f"floor must be a chance below 1 (0: never stop early), got {floor!r}")
        self.floor = floor
        self._prepared: PreparedHead | None = None
        self._batched_cost: float | None = None  # of a guess for several rows: as torch takes; a few rows take less
        self._sampled_cost: float | None = None  # of one above temperature 0

    @cached_property
    def head(self) -> Head:
        """The head in float32. ``saved`` is as it was given: from a file in bfloat16, mapped, and enough to draft."""
        if next(self.saved.parameters()).dtype == torch.float32:
            return self.saved
        return deepcopy(self.saved).float()

    @property
    def gamma(self) -> int:
        return self.saved.config.gamma

    @property
    def weights_read(self) -> int:
        """Numbers a guess multiplies with."""
        return self.saved.config.weights_read(len(self.tokens))

    def beside(self, facts: ModelFacts) -> HeadDrafter:
        """What a guess costs follows from what it reads, where the target's runs cost what they read."""
        if facts.weights_read is not None:
            alone = choose(self.saved.config, torch.device("cpu"), 1, torch.float32).backend
            share = self.weights_read / facts.weights_read / _quicker(facts.weights_in)
            self.cost = _TIME_PER_WEIGHT[alone] * share
            self._batched_cost, self._sampled_cost = _TIME_PER_WEIGHT["torch"] * share, _SAMPLED * self.cost
        return self

    @property
    def plans(self) -> bool:
        return self.floor > 0 and not self.saved.config.blockwise

    @property
    def traits(self) -> DrafterTraits:
        costs = self.cost, self._batched_cost, self._sampled_cost
        return DrafterTraits(*costs, gamma=self.gamma, stops_itself=self.plans)

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        size = None if target.hidden is None else target.hidden.shape[-1]
        if size != self.saved.config.hidden_size or target.unembedding is None:
            raise BadOption(
                f"draft {self.name!r} reads hidden states of size {self.saved.config.hidden_size}, "
                f"the target shows {size or 'none'}; use the draft with the target it was trained for"
            )
        least, most = (int(self.tokens.min()), int(self.tokens.max())) if len(self.tokens) else (0, -1)
        require(
            0 <= least <= most < min(target.vocab_size, target.unembedding.shape[0]),
            f"draft {self.name!r} knows tokens {least} to {most}, the target has {target.vocab_size}; "
            "use the draft with the target it was trained for",
        )
        return HeadSession(self.prepared(target), self.floor if self.plans else 0.0, rows, shape, target)

    def prepared(self, target: Session) -> PreparedHead:
        """Weights are prepared once for a target, not for every request."""
        if self._prepared is None or not self._prepared.fits(target):
            self._prepared = PreparedHead(self.saved, self.tokens, target)
        return self._prepared

    def save(self, folder: Path) -> None:
        weights = {f"head.{k}": v.to(torch.bfloat16).contiguous() for k, v in self.saved.state_dict().items()}
        file = folder / "model.safetensors"
        made = file.with_suffix(".partial")  # a new file: another process may have mapped the old one
        save_file({**weights, "tokens": self.tokens.to(torch.int32)}, str(made))
        replace_whole(made, file)
        write_whole(folder / CONFIG, json.dumps(asdict(self.saved.config), indent=2) + "\n")

    @staticmethod
    def load(folder: Path, name: str | None = None) -> HeadDrafter:
        require((folder / CONFIG).is_file(), f"no trained draft in {folder}: {CONFIG} is missing", ModelNotFound)
        try:
            config = _parse(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
            weights = load_file(str(folder / "model.safetensors"))
            with torch.device("meta"):  # shapes alone: drawing numbers that are written over took a tenth of a second
                head = Head(config)
            given = {k[5:]: v for k, v in weights.items() if k.startswith("head.")}
            head.load_state_dict(given, assign=True)
        except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelCorrupt(f"the trained draft in {folder} cannot be read ({reason}); train it again") from error
        return HeadDrafter(head, weights["tokens"].to(torch.int64), name or folder.name)


def _parse(settings: dict[str, Any]) -> HeadConfig:
    known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return HeadConfig(**known)

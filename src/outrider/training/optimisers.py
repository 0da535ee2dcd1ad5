"""The optimisers of training: AdamW, or Muon for matrices with AdamW for what is no matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

ADAMW, MUON = "adamw", "muon"
OPTIMISERS = (ADAMW, MUON)

WEIGHT_DECAY = 0.01


class Optimiser:
    """One or two torch optimisers that step together, with one learning rate.

    Muon (Jordan et al. 2024) makes the momentum of every matrix nearly orthogonal before it is applied; scaled so that
    its steps are as large as AdamW's usually are, it takes AdamW's learning rate.
    """

    def __init__(self, name: str, module: nn.Module, rate: float) -> None:
        learnt = [p for p in module.parameters() if p.requires_grad]
        matrices = [p for p in learnt if p.dim() == 2] if name == MUON else []
        taken = set(map(id, matrices))
        rest = [p for p in learnt if id(p) not in taken]
        self.parts: list[torch.optim.Optimizer] = []
        if matrices:
            self.parts.append(_muon(matrices, rate))
        if rest:
            self.parts.append(torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY))

    def step(self, rate: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, kept in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(kept)


def _muon(matrices: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    scaled = "match_rms_adamw"
    return torch.optim.Muon(matrices, lr=rate, weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn=scaled)

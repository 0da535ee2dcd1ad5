"""Says where another way of loading a model would make it several times faster."""

from __future__ import annotations

import copy
import warnings

import torch
from transformers import PreTrainedModel

from outrider.errors import OutriderError
from outrider.models.engine.choice import Kernels, chosen_engine

GIVEN: set[str] = set()


def advise_loading(model: PreTrainedModel) -> None:
    """Warn, once for a model, where a CPU engine could run what goes through transformers' layers here."""
    path = str(model.name_or_path or "")
    if not path or path in GIVEN or model.device.type != "cpu":
        return
    GIVEN.add(path)
    config = copy.copy(model.config)
    config.dtype = torch.bfloat16  # what checkpoints of these families are saved in; loading has changed what it says
    size = float(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))
    try:
        engine = chosen_engine(Kernels("auto"), config, model.device, torch.float32, size, settled=False, tried=False)
    except OutriderError:
        return
    if engine != "torch":
        warnings.warn(
            f"outrider.load({path!r}) can run this model on a CPU with {engine}, several times as fast as "
            "transformers' layers, which model.generate(..., custom_generate=...) runs",
            stacklevel=4,
        )

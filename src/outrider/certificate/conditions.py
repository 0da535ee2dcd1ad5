"""What a certificate holds for: the machine, the software, the shapes and the kernels in use."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

from outrider.core.model_facts import dtype_name
from outrider.kernels.packed_linear import packed_layers
from outrider.llm import LLM
from outrider.models.engine.model import EngineModel
from outrider.runtime import cpu


def conditions(llm: LLM, slots: int) -> dict[str, Any]:
    """Everything the bits may depend on, as far as it can be asked for."""
    model = llm.target.model
    return {
        "device": _device(model.device),
        "dtype": dtype_name(model.dtype),
        "width": llm.width,
        "slots": slots,
        "exact": llm.exact,
        **_kernels(llm),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu.facts().name


def _kernels(llm: LLM) -> dict[str, Any]:
    model = llm.target.model
    found: dict[str, Any] = {"engine": model.facts.engine, "weights": llm.target.kernels.weights}
    if isinstance(model, EngineModel):
        facts = model.facts
        return found | {
            "kernels": model.engine.kernels, "any_width": facts.batch_invariant, "threads": model.engine.threads,
            "width_costs": facts.width_costs,
        }  # fmt: skip
    found["attention"] = str(model.config._attn_implementation)
    if model.device.type == "cuda":
        found["cuda"] = torch.version.cuda
        found["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability(model.device)))
        found["float32_matmul"] = torch.get_float32_matmul_precision()
        return found
    packed, linear = packed_layers(llm.target.transformers_model.model)
    found["linear_layers"] = f"{packed} of {linear} packed (oneDNN)" if packed else f"{linear} ordinary"
    found["cpu_capability"] = cpu.facts().vectors
    found["threads"] = torch.get_num_threads()
    return found

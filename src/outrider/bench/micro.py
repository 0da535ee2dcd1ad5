"""Times the kernels of a step one by one (matrix products, attention, filters), each in a CUDA graph of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from outrider.bench.gpu import StepSetting
from outrider.bench.timing import timed
from outrider.core.sampling import Sampling, _filter


def replayed(work: Callable[[int], object], device: torch.device, count: int) -> float:
    """Microseconds of one call among ``count`` different ones in a row; on a CPU they are simply called."""

    def all_of_them() -> None:
        for index in range(count):
            work(index)

    if device.type == "cpu":
        return timed(all_of_them, device, 2, 1, lambda: None)["median"] * 1000 / count
    all_of_them()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of_them()
    return timed(graph.replay, device, 5, 3, lambda: None)["median"] * 1000 / count


def products(setting: StepSetting, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Linear layers of both models at several widths: microseconds and bytes of weights a second."""
    found = []
    for name, model in (("target", setting.target), ("draft", setting.draft)):
        c = model.config
        head = c.hidden_size // c.num_attention_heads
        qkv = (c.num_attention_heads + 2 * c.num_key_value_heads) * head
        sizes = {
            "q": (c.hidden_size, c.hidden_size), "k": (head * c.num_key_value_heads, c.hidden_size),
            "qkv": (qkv, c.hidden_size), "gate": (c.intermediate_size, c.hidden_size),
            "gate_up": (2 * c.intermediate_size, c.hidden_size), "down": (c.hidden_size, c.intermediate_size),
            "head": (c.vocab_size, c.hidden_size),
        }  # fmt: skip
        for label, (out, inner) in sizes.items():
            copies = max(2, min(12, int(6e8 // (out * inner * 2))))  # more than the cache holds
            weights = [torch.randn((out, inner), dtype=model.dtype, device=setting.device) for _ in range(copies)]
            row: dict[str, Any] = {"model": name, "layer": label, "shape": [out, inner]}
            for width in widths:
                x = torch.randn((width, inner), dtype=model.dtype, device=setting.device)
                took = replayed(lambda i: torch.nn.functional.linear(x, weights[i]), setting.device, copies)  # noqa: B023
                row[f"us_{width}"] = round(took, 2)
                row[f"tb_s_{width}"] = round(weights[0].numel() * weights[0].element_size() / took / 1e6, 2)
            found.append(row)
    return found


def attention(setting: StepSetting, lengths: tuple[int, ...], capacity: int) -> list[dict[str, Any]]:
    """Microseconds of one layer's attention at several lengths and piece sizes, and of torch's own with a mask."""
    from outrider.kernels.triton import attention as kernel

    c = setting.target.config
    head, heads, q_heads = c.hidden_size // c.num_attention_heads, c.num_key_value_heads, c.num_attention_heads
    kind, device = setting.target.dtype, setting.device
    pairs = [torch.randn((2, 1, heads, capacity, head), dtype=kind, device=device) for _ in range(4)]
    query = torch.randn((1, setting.width, q_heads, head), dtype=kind, device=device)
    found = []
    usual = kernel.PIECE
    for length in lengths:
        at = torch.arange(length - setting.width, length, device=device)[None]
        row: dict[str, Any] = {"length": length}
        for piece in (64, 128, 256):
            kernel.PIECE = piece
            took = replayed(lambda i: kernel.attend(query, pairs[i][0], pairs[i][1], at, head**-0.5), device, 4)  # noqa: B023
            row[f"us_piece_{piece}"] = round(took, 2)
        kernel.PIECE = usual
        mask = torch.arange(capacity, device=device)[None, None, None] <= at[:, None, :, None]

        def plainly(i: int) -> object:
            key, value = (x.repeat_interleave(q_heads // heads, 1) for x in pairs[i])
            return torch.nn.functional.scaled_dot_product_attention(query.transpose(1, 2), key, value, mask)  # noqa: B023

        row["us_torch_whole_buffer"] = round(replayed(plainly, device, 4), 2)
        found.append(row)
    return found


def filters(setting: StepSetting) -> dict[str, float]:
    """Microseconds of the filters over the whole vocabulary, for a step's rows and for one guess; top-p also sorted."""
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax only": lambda x: x,
        "top_k 50": lambda x: _filter(x, Sampling(1.0, top_k=50)),
        "top_p 0.9": lambda x: _filter(x, Sampling(1.0, top_p=0.9)),
        "top_p 0.9, sorted": lambda x: _sorted_top_p(x, 0.9),
    }
    found = {}
    for rows in (1, setting.gamma + 1):
        shape = (1, rows, setting.target.vocab_size)
        logits = [5 * torch.randn(shape, device=setting.device) for _ in range(4)]  # as peaked as a language model's
        for name, way in ways.items():
            took = replayed(lambda i: way(logits[i]).softmax(-1), setting.device, 4)  # noqa: B023
            found[f"{name}, {rows} rows"] = round(took, 1)
    return found


def _sorted_top_p(logits: Tensor, top_p: float) -> Tensor:
    """The obvious way, for comparison."""
    ordered, index = logits.sort(dim=-1, descending=True)
    probs = ordered.softmax(-1)
    beyond = probs.cumsum(-1) - probs >= top_p
    return logits.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)

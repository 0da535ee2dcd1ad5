"""A T5-like model's weights as numba's kernels read them: panels of sixteen columns, as in ``numba_weights.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.errors import ModelError, require
from outrider.kernels.numba import amx_products
from outrider.kernels.numba.tiles import PANEL
from outrider.models.engine.numba_weights import SAMPLE, Products
from outrider.models.engine.t5_sizes import BIAS, COPIES, EMBEDDING, NEVER_READ, OUTPUT, T5Sizes
from outrider.models.engine.weight_files import REMEDY, WEIGHTS, Tensors, WeightFile
from outrider.models.settings import saved_dtype


def write(folder: Path, source: Path, config: Any, weights: str) -> dict[str, tuple[int, list[int]]]:
    """Weights into a file -> where in it each of them is."""
    file = WeightFile(folder / WEIGHTS)
    try:
        tensors, sizes = Tensors(source), T5Sizes.of(config)
        products = Products(file, tensors, weights, saved_dtype(config), amx_products.AVAILABLE)
        for stack in ("encoder", "decoder"):
            _write_stack(products, sizes, stack)
        table = products.matrix(EMBEDDING, (sizes.vocabulary, sizes.hidden))
        for name in COPIES:
            same = name not in tensors or torch.equal(tensors.tensor(name), table)
            require(same, f"{name} is not {EMBEDDING}; {REMEDY}", ModelError)
        output = table
        if OUTPUT in tensors:  # as in transformers: one of its own counts, whatever the config says
            output = products.matrix(OUTPUT, (sizes.vocabulary, sizes.hidden))
        products.write("output", output)
        if products.half:
            file.write("powers", np.array(products.powers))
            # As they were saved, down to the smallest: heads know their target by them.
            file.write("sample", table[:SAMPLE].to(torch.float32).numpy())
        if not torch.equal(table, output):
            products.table("embedding", table)
        tensors.require_all_used(except_for=set(NEVER_READ))
    finally:
        file.close()
    return {"embedding": file.places["output"]} | file.places  # tied: tokens are looked up in the output layer


def _write_stack(products: Products, sizes: T5Sizes, stack: str) -> None:
    tensors = products.tensors
    for layer in range(sizes.layers(stack)):
        for name, parts in sizes.products(stack).items():
            shape = sizes.shape(name)
            given = [products.matrix(f"{stack}.block.{layer}.{part}.weight", shape) for part in parts]
            products.write(f"{stack}.{layer}.{name}", _joined(name, given, sizes.depth))
    names = [f"{stack}.block.{layer}.{n}.weight" for layer in range(sizes.layers(stack)) for n in sizes.norms(stack)]
    last = tensors.sized(f"{stack}.final_layer_norm.weight", (sizes.hidden,))
    if stack == "decoder" and sizes.scaled:
        last = last * sizes.hidden**-0.5  # what the output layer reads
    norms = [tensors.sized(name, (sizes.hidden,)) for name in names]
    products.file.write(f"{stack}.norms", torch.stack([*norms, last]).numpy())
    products.file.write(f"{stack}.bias", tensors.sized(f"{stack}.{BIAS}", (sizes.buckets, sizes.heads)).numpy())


def _joined(name: str, given: list[Tensor], depth: int) -> Tensor:
    """The matrices of a product as one."""
    if name in ("qkv", "cross_q", "cross_kv"):  # heads one behind the other, each filled up to whole panels
        heads = torch.cat(given).view(-1, depth, given[0].shape[1])
        return torch.nn.functional.pad(heads, (0, 0, 0, -depth % PANEL)).flatten(0, 1)
    if name == "inner" and len(given) == 2:  # a panel of the gate, the same panel of what it gates
        return torch.stack([part.view(-1, PANEL, part.shape[1]) for part in given], 1).flatten(0, 2)
    return given[0]

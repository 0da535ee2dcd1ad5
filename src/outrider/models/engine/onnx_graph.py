"""Writes ONNX graphs, with their weights in a file beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from onnx import TensorProto, helper
from torch import Tensor

from outrider.models.engine.weight_files import WEIGHTS, WeightFile

_BLOCK = 64
"""Weights that share a scale. Of the sizes there are kernels for, larger ones are faster and smaller ones finer."""

MICROSOFT = "com.microsoft"


class Graph:
    """Builds an ONNX graph node by node. Methods return the name of their result. Graphs may share a weight file."""

    def __init__(self, file: WeightFile, int8: bool) -> None:
        self.file, self.int8 = file, int8
        self.nodes: list[Any] = []
        self.constants: list[TensorProto] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def shape(self, *sizes: int) -> str:
        """A constant shape: 0 keeps a size, -1 takes what is left."""
        name = f"shape_{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, TensorProto.INT64, [len(sizes)], sizes))
        return name

    def run(self, kind: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, **attributes: Any) -> Any:
        names = outputs if not isinstance(outputs, int) else [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if len(names) == 1 else names

    def weight(self, name: str, tensor: Tensor) -> str:
        array = tensor.numpy()
        proto = TensorProto(
            name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        place = self.file.write(name, array)
        for key, value in (("location", WEIGHTS), ("offset", place), ("length", array.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        self.constants.append(proto)
        return name

    def linear(self, x: str, name: str, weight: Tensor, bias: Tensor | None = None) -> str:
        """x [N, in] -> [N, out]."""
        if not self.int8:
            inputs = [x, self.weight(name, weight)] + ([] if bias is None else [self.weight(f"{name}.bias", bias)])
            return str(self.run("Gemm", inputs, transB=1))
        values, scales = blocks(weight)
        inputs = [x, self.weight(f"{name}.int8", values), self.weight(f"{name}.scales", scales)]
        inputs += [] if bias is None else ["", "", self.weight(f"{name}.bias", bias)]
        sizes = {"K": weight.shape[1], "N": weight.shape[0], "bits": 8, "block_size": _BLOCK}
        # Level 4: rows of activations are rounded to eight bits, each by itself, and multiplied as whole numbers.
        return str(self.run("MatMulNBits", inputs, domain=MICROSOFT, accuracy_level=4, **sizes))

    def save(self, path: Path) -> None:
        graph = helper.make_graph(self.nodes, path.stem, self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", 24), helper.make_opsetid(MICROSOFT, 1)]
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString())


def blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight [out, in] in eight bits: values [out, blocks, size] around 128, and scales [out, blocks]."""
    out, inputs = weight.shape
    count = -(-inputs // _BLOCK)
    split = torch.nn.functional.pad(weight, (0, count * _BLOCK - inputs)).view(out, count, _BLOCK)
    scales = split.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    values = (split / scales[..., None]).round() + 128
    return values.to(torch.uint8), scales

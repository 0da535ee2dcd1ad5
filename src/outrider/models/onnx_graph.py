"""What ONNX graphs are written with: tensors from a checkpoint, weights in one file, nodes in the order they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from onnx import TensorProto, helper
from safetensors import safe_open
from torch import Tensor

from outrider.errors import ModelError, require

WEIGHTS = "weights.bin"
_PAGE = 4096
_BLOCK = 64
"""Weights that share a scale. Of the sizes there are kernels for, larger ones are faster and smaller ones finer."""

MICROSOFT = "com.microsoft"


class Tensors:
    """The tensors of a directory's safetensors files, read one at a time."""

    def __init__(self, folder: Path) -> None:
        files: list[Any] = [safe_open(str(file), framework="pt") for file in sorted(folder.glob("*.safetensors"))]
        self.home = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.home

    def joined(self, names: Sequence[str]) -> Tensor:
        """Tensors one below the other, in float32."""
        missing = [name for name in names if name not in self.home]
        require(not missing, f"the checkpoint has no tensor {missing[:1]}; {_REMEDY}", ModelError)
        self.used |= set(names)
        return torch.cat([self.home[name].get_tensor(name).to(torch.float32) for name in names])

    def require_all_used(self, except_for: set[str]) -> None:
        """A tensor that no graph reads would be a part of the model that is left out."""
        derived = {name for name in self.home if name.endswith("rotary_emb.inv_freq")}
        unused = sorted(self.home.keys() - self.used - derived - except_for)
        require(not unused, f"the checkpoint has tensors that are not known here: {unused[:3]}; {_REMEDY}", ModelError)


_REMEDY = "load the model with engine='torch'"


class WeightFile:
    """Tensors in one file, one after another; the same file serves several graphs."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("wb")
        self.places: dict[str, tuple[int, list[int]]] = {}  # offset in bytes and shape

    def write(self, name: str, array: np.ndarray[Any, Any]) -> TensorProto:
        """Append an array -> what stands for it in a graph."""
        self.file.seek(-self.file.tell() % _PAGE, 1)
        place = self.file.tell()
        self.file.write(np.ascontiguousarray(array).data)
        self.places[name] = (place, list(array.shape))
        proto = TensorProto(
            name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        for key, value in (("location", WEIGHTS), ("offset", place), ("length", array.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        return proto

    def close(self) -> None:
        self.file.close()


class Graph:
    """Nodes in the order they run; every method returns the name of what it gives."""

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
        self.constants.append(self.file.write(name, tensor.numpy()))
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

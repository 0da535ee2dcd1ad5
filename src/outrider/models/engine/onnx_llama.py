"""A Llama-like model as two ONNX graphs of few and large operations: its layers, and its output matrix.

The layers are lean.py's once more: queries, keys and values in one product, gate and up in another, heads that share
keys as rows of one attention. Keys and values are written at each row's own place into the buffers of a session, which
go in and come out as the same memory. What depends on positions (rotations and masks) is computed outside, so that
nothing here limits their number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto

from outrider.models.engine.onnx_graph import MICROSOFT, Graph
from outrider.models.engine.sizes import Sizes
from outrider.models.engine.weight_files import WEIGHTS, Tensors, WeightFile
from outrider.models.llama_layer import EMBEDDING, LAST_NORM, NORMS, PRODUCTS, layer_name
from outrider.models.llama_layer import OUTPUT as OUTPUT_MATRIX
from outrider.models.transformers.families import sliding_windows

FORMAT = 2
"""Raised whenever a graph changes: what was prepared before is then prepared again."""

LAYERS, OUTPUT = "layers.onnx", "output.onnx"


def mask_names(config: Any) -> list[str]:
    """Which mask each layer reads."""
    windows = sliding_windows(config)
    if isinstance(windows, dict):
        return [f"mask_{kind}" for kind in config.layer_types]
    return ["mask"] * config.num_hidden_layers


def write(folder: Path, source: Path, config: Any, int8: bool) -> dict[str, tuple[int, list[int]]]:
    """Graphs and weights into a folder -> where in the file the tensors are that are read outside of the graphs."""
    file, tensors = WeightFile(folder / WEIGHTS), Tensors(source)
    try:
        _layers(Graph(file, int8), tensors, config).save(folder / LAYERS)
        tied = config.tie_word_embeddings or OUTPUT_MATRIX not in tensors
        output = tensors.joined([EMBEDDING if tied else OUTPUT_MATRIX])
        graph = Graph(file, int8)
        graph.input("hidden", TensorProto.FLOAT, ["N", output.shape[1]])
        graph.run("Identity", [graph.linear("hidden", "unembedding", output)], ["logits"])
        graph.output("logits", ["N", output.shape[0]])
        graph.save(folder / OUTPUT)
        if int8:
            file.write("unembedding", output.numpy())
        if not tied:
            file.write("embedding", tensors.joined([EMBEDDING]).numpy())
        tensors.require_all_used(except_for={OUTPUT_MATRIX} if tied else set())
        places = file.places
    finally:
        file.close()
    return {name: places.get(name, places["unembedding"]) for name in ("embedding", "unembedding")}


def _layers(graph: Graph, tensors: Tensors, config: Any) -> Graph:
    """x [B * W, size] -> hidden [B * W, size], and on the way every layer's input and the buffers written to."""
    sizes, masks = Sizes.of(config), mask_names(config)
    half, buffer = sizes.depth // 2, ("B", sizes.shared, "C", sizes.depth)
    graph.input("x", TensorProto.FLOAT, ["N", sizes.hidden])
    graph.input("places", TensorProto.INT64, ["B", "W"])  # the row of cos and sin of each token
    graph.input("cos", TensorProto.FLOAT, ["N", half])
    graph.input("sin", TensorProto.FLOAT, ["N", half])
    graph.input("start", TensorProto.INT64, ["B"])
    for name in dict.fromkeys(masks):
        graph.input(name, TensorProto.FLOAT, ["B", 1, "R", "C"])  # R: a row for each token and head of a group
    for layer in range(sizes.layers):
        for kind in ("keys", "values"):
            graph.input(f"{kind}_{layer}", TensorProto.FLOAT, buffer)
            graph.output(f"{kind}_{layer}_after", buffer)
        graph.output(f"state_{layer + 1}", ["N", sizes.hidden])
    graph.output("hidden", ["N", sizes.hidden])
    build = _Layers(graph, tensors, sizes)
    before, between = NORMS
    normed, x = build.first_norm(f"{layer_name(0)}.{before}"), "x"
    for layer in range(sizes.layers):
        prefix, last = layer_name(layer), layer + 1 == sizes.layers
        mixed = build.attention(layer, normed, masks[layer])
        normed, x = build.norm(x, mixed, f"{prefix}.{between}", f"between_{layer}")
        after = LAST_NORM if last else f"{layer_name(layer + 1)}.{before}"
        normed, x = build.norm(x, build.gated(prefix, normed), after, f"state_{layer + 1}")
    graph.run("Identity", [normed], ["hidden"])
    return graph


class _Layers:
    """The parts of a layer."""

    def __init__(self, graph: Graph, tensors: Tensors, sizes: Sizes) -> None:
        self.graph, self.tensors, self.sizes = graph, tensors, sizes
        rows = graph.run("Shape", ["places"])  # B, W
        self.flat = graph.run("Concat", [rows, graph.shape(-1)], axis=0)
        self.by_head = graph.run("Concat", [rows, graph.shape(sizes.shared, sizes.depth)], axis=0)

    def first_norm(self, name: str) -> str:
        scale = self.graph.weight(name, self.tensors.joined([f"{name}.weight"]))
        options: dict[str, Any] = {"axis": -1, "epsilon": self.sizes.epsilon}
        return str(self.graph.run("SimplifiedLayerNormalization", ["x", scale], **options))

    def norm(self, x: str, more: str, name: str, total: str) -> tuple[str, str]:
        """x + more, normed; and that sum itself, under the name ``total``."""
        scale = self.graph.weight(name, self.tensors.joined([f"{name}.weight"]))
        names = [f"{total}_normed", "", "", total]
        options: dict[str, Any] = {"domain": MICROSOFT, "epsilon": self.sizes.epsilon}
        self.graph.run("SkipSimplifiedLayerNormalization", [x, more, scale], names, **options)
        return names[0], total

    def linear(self, x: str, prefix: str, product: str) -> str:
        """Layers that read the same input, as one."""
        parts = [f"{prefix}.{name}" for name in PRODUCTS[product]]
        biased = f"{parts[0]}.bias" in self.tensors
        weight = self.tensors.joined([f"{part}.weight" for part in parts])
        bias = self.tensors.joined([f"{part}.bias" for part in parts]) if biased else None
        return self.graph.linear(x, f"{prefix}.{product}", weight, bias)

    def gated(self, prefix: str, x: str) -> str:
        both = self.linear(x, prefix, "gate_up")
        gate, up = self.graph.run("Split", [both], 2, axis=-1, num_outputs=2)
        gate = self.graph.run("QuickGelu", [gate], domain=MICROSOFT, alpha=1.0)  # with alpha 1 it is silu
        return self.linear(self.graph.run("Mul", [gate, up]), prefix, "down")

    def attention(self, layer: int, x: str, mask: str) -> str:
        graph, sizes = self.graph, self.sizes
        prefix = layer_name(layer)
        own, shared = sizes.heads * sizes.depth, sizes.shared * sizes.depth
        joined = self.linear(x, prefix, "qkv")
        turned, value = graph.run("Split", [joined, graph.shape(own + shared, shared)], 2, axis=-1)
        turned = graph.run("Reshape", [turned, self.flat])  # [B, W, ...]
        turned = graph.run(
            "RotaryEmbedding", [turned, "places", "cos", "sin"], domain=MICROSOFT, num_heads=sizes.heads + sizes.shared
        )
        query, key = graph.run("Split", [turned, graph.shape(own, shared)], 2, axis=-1)
        keys, values = (self._kept(layer, name, new) for name, new in (("keys", key), ("values", value)))
        # Heads that share keys are rows of one attention: [B, Hk, G * W, D].
        query = graph.run("Reshape", [query, graph.shape(0, 0, sizes.shared, sizes.groups, sizes.depth)])
        query = graph.run("Transpose", [query], perm=[0, 2, 3, 1, 4])
        query = graph.run("Reshape", [query, graph.shape(0, sizes.shared, -1, sizes.depth)])
        scores = graph.run("FusedMatMul", [query, keys], domain=MICROSOFT, transB=1, alpha=sizes.depth**-0.5)
        weights = graph.run("Softmax", [graph.run("Add", [scores, mask])], axis=-1)
        found = graph.run("MatMul", [weights, values])
        found = graph.run("Reshape", [found, graph.shape(0, sizes.shared, sizes.groups, -1, sizes.depth)])
        found = graph.run("Transpose", [found], perm=[0, 3, 1, 2, 4])
        return self.linear(graph.run("Reshape", [found, graph.shape(-1, own)]), prefix, "o")

    def _kept(self, layer: int, kind: str, new: str) -> str:
        """The buffer with new keys or values at each row's place."""
        new = self.graph.run("Reshape", [new, self.by_head])  # [B, W, Hk, D]
        new = self.graph.run("Transpose", [new], perm=[0, 2, 1, 3])
        return str(
            self.graph.run("TensorScatter", [f"{kind}_{layer}", new, "start"], [f"{kind}_{layer}_after"], axis=2)
        )

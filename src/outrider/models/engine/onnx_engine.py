"""Runs of prepared graphs by onnxruntime, on the memory of torch's tensors: nothing is copied in or out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from outrider.models.engine.llama_engine import Found, LlamaEngine, Run
from outrider.models.engine.onnx_llama import LAYERS, OUTPUT
from outrider.models.engine.prepared import Prepared
from outrider.models.kv_buffers import Buffers
from outrider.runtime.threads import spins

_KINDS = {torch.float32: np.float32, torch.int64: np.int64}


class OnnxEngine(LlamaEngine):
    """Runs a model's two graphs by onnxruntime. Threads may share it; each run belongs to one cache."""

    reads_masks = True
    name = f"onnxruntime {onnxruntime.__version__}"
    kernels = ""  # its version says it all

    def __init__(self, prepared: Prepared, config: Any) -> None:
        super().__init__(prepared, config)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        # Where threads may spin they do so between the operations of a run, which are short, and not between runs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins() else "0")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._layers, self._output = (
            onnxruntime.InferenceSession(str(prepared.folder / name), options, providers=["CPUExecutionProvider"])
            for name in (LAYERS, OUTPUT)
        )
        self.embedding, self.unembedding = prepared.tensor("embedding"), prepared.tensor("unembedding")
        self._bound: WeakKeyDictionary[Buffers, Any] = WeakKeyDictionary()

    def run_layers(self, cache: Buffers, given: Run, keep: Sequence[int], logits: bool) -> Found:
        binding = self._binding(cache)
        rows = given.start.shape[0]
        tokens = given.x.shape[0]
        assert given.masks is not None
        places = torch.arange(tokens).view(rows, -1)
        inputs = {"x": given.x, "places": places, "cos": given.cos, "sin": given.sin, "start": given.start}
        inputs = {name: tensor.contiguous() for name, tensor in (inputs | dict(given.masks)).items()}
        hidden = torch.empty_like(given.x)
        states = {layer: torch.empty_like(given.x) for layer in keep}
        for name, tensor in inputs.items():
            _bind(binding.bind_input, name, tensor)
        _bind(binding.bind_output, "hidden", hidden)
        for layer, state in states.items():
            _bind(binding.bind_output, f"state_{layer}", state)
        self._layers.run_with_iobinding(binding)
        return hidden, states, self._logits(hidden) if logits else None

    def _logits(self, hidden: Tensor) -> Tensor:
        """[N, size] -> [N, vocabulary]."""
        found = torch.empty((hidden.shape[0], self.vocabulary))
        binding = self._output.io_binding()
        hidden = hidden.contiguous()  # under a name: bound memory must outlive the run
        _bind(binding.bind_input, "hidden", hidden)
        _bind(binding.bind_output, "logits", found)
        self._output.run_with_iobinding(binding)
        return found

    def _binding(self, cache: Buffers) -> Any:
        """Buffers stay where they are from run to run: they are bound once, as what goes in and what comes out."""
        binding = self._bound.get(cache)
        if binding is None:
            binding = self._bound[cache] = self._layers.io_binding()
            for layer, pair in enumerate(cache.buffers()):
                for kind, buffer in zip(("keys", "values"), pair, strict=True):
                    _bind(binding.bind_input, f"{kind}_{layer}", buffer)
                    _bind(binding.bind_output, f"{kind}_{layer}_after", buffer)
        return binding


def _bind(bind: Any, name: str, tensor: Tensor) -> None:
    assert tensor.is_contiguous(), name
    bind(name, "cpu", 0, _KINDS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())

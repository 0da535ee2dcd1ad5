"""The tensors of a GGUF file by the names that checkpoints give them, read as the file has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelCorrupt, ModelError

if TYPE_CHECKING:
    import numpy as np

PACKED = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
"""Formats that are run as they are."""

FULL = frozenset({"F32", "F16", "BF16"})

ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "phi3"})
"""Whose tensors are named here. Files of others are unpacked by transformers."""

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",  # read into the config (gguf_config.py)
}
_OF_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
_JOINED = {"phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}}
"""Other names of some architectures: one matrix for those that read the same input."""

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def checkpoint_name(name: str, architecture: str) -> str | None:
    """What a checkpoint calls a tensor of a GGUF file; None where it is not known here."""
    if found := _LAYER.fullmatch(name):
        layer, part, kind = found.groups()
        known = _OF_LAYER | _JOINED.get(architecture, {})
        return f"model.layers.{layer}.{known[part]}.{kind}" if part in known else None
    return _WHOLE.get(name)


def packed_format(architecture: str, tensors: Iterable[Any]) -> str | None:
    """The format of most weights of a file, if all of it can be run as it is; None: it is to be unpacked."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        name = checkpoint_name(tensor.name, architecture)
        turned_bias = architecture == "llama" and tensor.name.endswith(("attn_q.bias", "attn_k.bias"))
        if name is None or turned_bias or tensor.tensor_type.name not in PACKED | FULL:
            return None
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
    most = weights.most_common(1)[0][0] if weights else "F32"
    return most if architecture in ARCHITECTURES and not PACKED.isdisjoint(weights) and most in PACKED else None


def require_known_formats(path: Path, tensors: Iterable[Any]) -> None:
    """ModelError where a tensor is in a format that nothing here can read."""
    from gguf.quants import _type_traits

    for tensor in tensors:
        kind = tensor.tensor_type
        if kind.name not in FULL | PACKED and kind not in _type_traits:
            raise ModelError(
                f"{path}: {tensor.name} is in the format {kind.name}, which cannot be read here; quantise the model "
                f"to one of {', '.join(sorted(PACKED))}, for example with llama-quantize to Q4_K_M"
            )


class GgufTensors:
    """A GGUF file's tensors, read some rows at a time: the file is not mapped into memory."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self._path = path
        architecture = str(reader.fields["general.architecture"].contents())
        self._turned = architecture == "llama"
        self._tensors = {}
        for tensor in reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            facts = (tensor.tensor_type.name, shape, int(tensor.data_offset), int(tensor.n_bytes))
            self._tensors[checkpoint_name(tensor.name, architecture) or tensor.name] = facts

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def format(self, name: str) -> str:
        return self._facts(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._facts(name)[1]

    def _facts(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        if name not in self._tensors:
            raise ModelCorrupt(f"{self._path} has no tensor for {name}; get the file again")
        return self._tensors[name]

    def rows(self, name: str, rows: np.ndarray[Any, Any], depth: int) -> np.ndarray[Any, Any]:
        """Rows of a matrix in the checkpoint's order, as bytes [R, n]; those with number -1 are zeros.

        ``depth``: of a head. llama.cpp keeps the rows of a Llama's queries and keys in another order.
        """
        import numpy as np

        _, shape, offset, size = self._facts(name)
        if self._turned and name.endswith(("q_proj.weight", "k_proj.weight")):
            inside = rows % depth
            rows = np.where(rows < 0, -1, rows - inside + 2 * (inside % (depth // 2)) + inside // (depth // 2))
        wide, known = size // shape[0], rows[rows >= 0]
        found = np.zeros((len(rows), wide), np.uint8)
        if len(known):
            first, last = int(known.min()), int(known.max()) + 1
            found[rows >= 0] = self._read(offset + wide * first, wide * (last - first)).reshape(-1, wide)[known - first]
        return found

    def full(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor in float32."""
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        kind, shape, offset, size = self._facts(name)
        raw = self._read(offset, size)
        if kind in ("F32", "F16"):
            return raw.view(np.float32 if kind == "F32" else np.float16).astype(np.float32).reshape(shape)
        found: np.ndarray[Any, Any] = dequantize(raw.reshape(shape[0], -1), GGMLQuantizationType[kind])
        return found.reshape(shape)

    def _read(self, offset: int, size: int) -> np.ndarray[Any, Any]:
        import numpy as np

        found = np.fromfile(self._path, np.uint8, size, offset=offset)
        if len(found) != size:
            raise ModelCorrupt(f"{self._path} ends before its tensors do; get the file again")
        return found

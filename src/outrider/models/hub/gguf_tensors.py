"""The tensors of a GGUF file by the names that checkpoints give them, read as the file has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelCorrupt, ModelError
from outrider.models.hub.gguf_architectures import ARCHITECTURES, checkpoint_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_TURNED = re.compile(r"\.[qk]_proj\.(weight|bias)$")

PACKED = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
"""Formats that are run as they are."""

FULL = frozenset({"F32", "F16", "BF16"})

_QUANTISE = f"quantise the model to one of {', '.join(sorted(PACKED))}, for example with llama-quantize to Q4_K_M"
_UNKNOWN_TYPE = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")


def packed_format(architecture: str, tensors: Iterable[Any]) -> str | None:
    """The format of most weights of a file, if all of it can be run as it is; None: it is to be unpacked."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        name = checkpoint_name(tensor.name, architecture)
        if name is None or tensor.tensor_type.name not in PACKED | FULL:
            return None
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
    most = weights.most_common(1)[0][0] if weights else "F32"
    return most if most in PACKED else None


def require_known_formats(path: Path, tensors: Iterable[Any]) -> None:
    """ModelError where a tensor is in a format that nothing here can read."""
    from gguf.quants import _type_traits

    for tensor in tensors:
        kind = tensor.tensor_type
        if kind.name not in FULL | PACKED and kind not in _type_traits:
            raise ModelError(
                f"{path}: {tensor.name} is in the format {kind.name}, which cannot be read here; {_QUANTISE}"
            )


def require_known_version(path: Path, version: bytes) -> None:
    """ModelError where the four bytes of a file's version are one that nothing here can read."""
    from gguf.gguf_reader import READER_SUPPORTED_VERSIONS as KNOWN

    if len(version) < 4:
        raise EOFError
    number = int.from_bytes(version, "little")
    number = number if number & 0xFFFF else int.from_bytes(version, "big")  # a file for big-endian machines
    if number not in KNOWN:
        raise ModelError(
            f"{path} is of GGUF version {number}, which is not known here; known are {', '.join(map(str, KNOWN))}; "
            "get the model in one of these, or a newer gguf package"
        )


def strict_reader(path: Path) -> Any:
    """gguf's reader; EOFError where the file is shorter than it says, ModelError where a type of tensors is unknown."""
    import numpy as np
    from gguf import GGUFReader

    class Reader(GGUFReader):  # type: ignore[misc]  # gguf has no types
        def _get(self, offset: Any, dtype: Any, count: Any = 1, *order: Any, **named: Any) -> Any:
            # Behind the end there is less than was asked for, on which numpy fails in words of its own.
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise EOFError
            return super()._get(offset, dtype, count, *order, **named)

    try:
        return Reader(path)
    except ValueError as error:
        if (found := _UNKNOWN_TYPE.search(str(error))) is None:
            raise
        what = f"has a tensor of type {found[1]}, which is not known here"
        raise ModelError(f"{path} {what}; {_QUANTISE}, or get the file again") from error


class GgufTensors:
    """A GGUF file's tensors, read some rows at a time: the file is not mapped into memory."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self._path = path
        architecture = str(reader.fields["general.architecture"].contents())
        known = ARCHITECTURES.get(architecture)
        self._turned = known is not None and known.turned
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

    def rows(self, name: str, rows: Array, depth: int) -> Array:
        """Rows of a matrix in the checkpoint's order, as bytes [R, n]; those with number -1 are zeros.

        ``depth``: of a head.
        """
        import numpy as np

        _, shape, offset, size = self._facts(name)
        rows = self._places(name, rows, depth)
        wide, known = size // shape[0], rows[rows >= 0]
        found = np.zeros((len(rows), wide), np.uint8)
        if len(known):
            first, last = int(known.min()), int(known.max()) + 1
            found[rows >= 0] = self._read(offset + wide * first, wide * (last - first)).reshape(-1, wide)[known - first]
        return found

    def _places(self, name: str, rows: Array, depth: int) -> Array:
        """Where rows of a checkpoint's tensor are in the file's: some architectures have others there."""
        import numpy as np

        if not (self._turned and _TURNED.search(name)):
            return rows
        inside = rows % depth
        return np.where(rows < 0, -1, rows - inside + 2 * (inside % (depth // 2)) + inside // (depth // 2))

    def numbers(self, name: str, rows: Array, depth: int) -> Array:
        """Rows of a matrix in the checkpoint's order, in float32."""
        return self._unpacked(self._facts(name)[0], self.rows(name, rows, depth))

    def vector(self, name: str, depth: int) -> Array:
        """A vector in the checkpoint's order, in float32."""
        import numpy as np

        kind, shape, offset, size = self._facts(name)
        found: Array = self._unpacked(kind, self._read(offset, size)[None]).reshape(shape)
        return found[self._places(name, np.arange(shape[0]), depth)]

    def _unpacked(self, kind: str, raw: Array) -> Array:
        """Bytes [R, n] of a format as float32."""
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        if kind in ("F32", "F16"):
            return raw.view(np.float32 if kind == "F32" else np.float16).astype(np.float32)
        found: Array = dequantize(raw, GGMLQuantizationType[kind])
        return found

    def _read(self, offset: int, size: int) -> Array:
        import numpy as np

        found = np.fromfile(self._path, np.uint8, size, offset=offset)
        if len(found) != size:
            raise ModelCorrupt(f"{self._path} ends before its tensors do; get the file again")
        return found

"""The GGUF file of a model with its weights unpacked to float16, for an engine that reads GGUF.

python recipes/gguf_float16.py model.gguf model-f16.gguf

Outrider converts a packed file to bfloat16 once and runs that. Another reader may unpack the same file to slightly
other numbers, and then writes another text. Here the numbers are rounded to bfloat16 first, which float16 holds
exactly unless they are below 0.00006, so that both engines run the same weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch

FLOAT16 = 1  # gguf's number for "mostly float16"


def unpacked(tensor: gguf.ReaderTensor) -> numpy.ndarray:
    """Matrices in float16 by way of bfloat16; vectors (norms, biases) in float32, as GGUF files have them."""
    numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    numbers = numbers.reshape(tuple(reversed(tensor.shape.tolist())))
    if numbers.ndim < 2:
        return numbers.astype(numpy.float32)
    rounded = torch.from_numpy(numbers.astype(numpy.float32)).to(torch.bfloat16)
    return rounded.to(torch.float16).numpy()


def copy_settings(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changes: dict[str, Any]) -> None:
    """Metadata as it is, but for what has changed; None leaves a setting out."""
    for name, entry in reader.fields.items():
        value = changes[name] if name in changes else entry.contents()
        if name.startswith("GGUF.") or name == "general.architecture" or value is None:  # the writer's own
            continue
        kind = entry.types[0]
        inner = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)


def rewrite(source: Path, target: Path) -> int:
    """Copy a file, its metadata as it is and its weights unpacked -> how many tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_settings(reader, writer, {"general.file_type": FLOAT16, "general.quantization_version": None})
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, unpacked(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return len(reader.tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, help="a new file")
    options = parser.parse_args()
    if not options.source.is_file():
        sys.exit(f"{options.source} does not exist")
    if options.target.exists():
        sys.exit(f"{options.target} exists; name a new file")
    sys.stdout.write(f"{rewrite(options.source, options.target)} tensors written to {options.target}\n")


if __name__ == "__main__":
    main()

"""What each packed format changes in a model of full weights: perplexity, divergence and agreement, as one table.

python recipes/packed_quality.py smollm2-135m --text docs/*.md

The model is a pulled GGUF model of Llama's kind, unpacked and turned by a random rotation (``rotation.py``), so that
its weights are on no grid; padded to multiples of 256 inputs, which K formats need, without changing what it computes.
The table compares models of weights in each format of GGUF files, by rounding, and quantised at load (int8, int4), with
the same model in float32, as ``weights_quality.py`` does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import torch
from gguf_q4_k_m import Q4_K_M, q4_k_m, write
from k_formats import BLOCK
from mistakes import guarded
from rotation import rotate
from transformers import AutoModelForCausalLM, AutoTokenizer
from weights_quality import WINDOW, compare, load, log_probabilities

from outrider.bench.inflate import Larger, inflate
from outrider.bench.llamacpp import gguf_file
from outrider.models.hub import names

FILES = {
    "Q8_0": 7, "Q6_K": 18, "Q5_K": 16, "Q5_1": 9, "Q5_0": 8, "Q4_K_M": Q4_K_M, "Q4_K": 14, "Q4_1": 3, "Q4_0": 2,
}  # fmt: skip
"""Formats, and gguf's numbers for files of them."""

QUANTISED = ("int8", "int4")


def padded(config: Any) -> Larger:
    """The same sizes, up to multiples of a block; heads keep their dimension, and how many share keys."""

    def whole(size: int, unit: int = BLOCK) -> int:
        return size + -size % unit

    depth, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    hidden = whole(max(config.hidden_size, config.num_attention_heads * depth))
    while hidden % (depth * group):
        hidden += BLOCK
    heads = hidden // depth
    return Larger(hidden, whole(config.intermediate_size), config.num_hidden_layers, heads, heads // group)


def full_model(target: str, folder: Path) -> tuple[Any, Path]:
    """The model in float32, saved in a folder, and the GGUF file whose tokenizer it has."""
    place = names.directory(target)
    source = gguf_file(target, str(place))
    if source is None:
        sys.exit(f"{target} was not made from a GGUF file; name one")
    names.unpack(place)
    torch.manual_seed(0)
    small = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    model = inflate(small, padded(small.config))
    rotate(model)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(place).save_pretrained(folder)
    return model, Path(source)


def table(target: str, texts: list[Path], most: int, formats: list[str]) -> None:
    with TemporaryDirectory() as base:
        folder = Path(base) / "full"
        model, source = full_model(target, folder)
        full = load(str(folder), "full")
        ids = [token for file in texts for token in full.tokenizer.encode(file.read_text(encoding="utf-8"))]
        windows = [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW, WINDOW)[:most]]
        expected = [log_probabilities(full, window) for window in windows]
        sys.stdout.write(f"{target}, padded and rotated: {len(windows)} windows of {WINDOW} tokens\n")
        sys.stdout.write("| weights | perplexity | KL | agree |\n| --- | --- | --- | --- |\n")
        _line("float32", compare(expected, full, windows))
        del full
        for name in formats:
            if name in QUANTISED:
                found = compare(expected, load(str(folder), name), windows)
            else:
                file = Path(base) / f"{name}.gguf"
                kind = q4_k_m if name == "Q4_K_M" else lambda _, __, name=name: gguf.GGMLQuantizationType[name]
                write(model, source, file, kind, FILES[name])
                found = compare(expected, load(str(folder), str(file)), windows)
                file.unlink()
            _line(name, found)


def _line(name: str, found: tuple[float, float, float]) -> None:
    perplexity, apart, same = found
    sys.stdout.write(f"| {name} | {perplexity:.3f} | {apart:.5f} | {same:.1%} |\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="the name of a model that was pulled as a GGUF file, or such a file")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files of text to read")
    parser.add_argument("--windows", type=int, default=24, help="windows of 512 tokens to read at most")
    parser.add_argument("--formats", nargs="+", choices=[*FILES, *QUANTISED], default=[*FILES, *QUANTISED])
    options = parser.parse_args()
    table(options.target, options.text, options.windows, options.formats)


if __name__ == "__main__":
    guarded(main)

"""What the format of keys and values changes in a target: perplexity, divergence, how often the likeliest tokens agree.

python recipes/kv_cache_quality.py smollm2-135m --text docs/algorithm.md docs/extensions.md docs/exactness.md

One text is read from its start, by the numba engine in every pair of dtype and kv_cache_dtype; the first is what the
others are compared with.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from mistakes import guarded
from torch import Tensor

import outrider
from outrider.core.protocols import Shape

PAIRS = ("float32:float32", "float32:float16", "float32:bfloat16", "float16:float32", "float16:float16")
CHUNK = 256


def log_probabilities(llm: outrider.LLM, ids: list[int]) -> Tensor:
    """[T - 1, V]: of every token after the first, given all before it."""
    session = llm.target.model.start(1, Shape(len(ids) + CHUNK, CHUNK, fixed=False))
    found = []
    for start in range(0, len(ids) - 1, CHUNK - 1):
        session.admit(0, ids[: start + 1])
        tokens = torch.tensor([ids[start + 1 : start + CHUNK]], dtype=torch.int64)
        found.append(session.score(tokens)[0, : min(CHUNK - 1, len(ids) - 1 - start)].log_softmax(-1))
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files of text to read, as one text")
    parser.add_argument("--tokens", type=int, default=3000, help="tokens to read at most")
    parser.add_argument("--pairs", nargs="+", default=PAIRS, help="DTYPE:KV_CACHE_DTYPE")
    options = parser.parse_args()
    text, expected = "\n".join(file.read_text(encoding="utf-8") for file in options.text), None
    for pair in options.pairs:
        dtype, kv_cache_dtype = pair.split(":")
        llm = outrider.load(
            options.target, None, "cpu", dtype, engine="numba", kv_cache_dtype=kv_cache_dtype
        )  # fmt: skip
        ids = llm.tokenizer.encode(text)[: options.tokens]
        p = log_probabilities(llm, ids)
        expected = p if expected is None else expected
        surprise = -float(p.gather(1, torch.tensor(ids[1:])[:, None]).mean())
        divergence = torch.cat(
            [(e.exp() * (e - q)).sum(-1) for e, q in zip(expected.split(256), p.split(256), strict=True)]
        )
        agree = float((p.argmax(-1) == expected.argmax(-1)).float().mean())
        sys.stdout.write(
            f"{pair}: perplexity {math.exp(surprise):.4f}; divergence {float(divergence.mean()):.1e} nats, "
            f"{float(divergence[-len(ids) // 4 :].mean()):.1e} in the last quarter; agree {agree:.2%}\n"
        )


if __name__ == "__main__":
    guarded(main)

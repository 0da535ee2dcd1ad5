"""What packed weights change in a target: perplexity, divergence, how often the likeliest token differs; as a table.

python recipes/weights_quality.py smollm2-135m --text docs/*.md
python recipes/weights_quality.py smollm2-135m --text docs/*.md --against int8 int4 other.gguf

Texts are cut into windows of 512 tokens; all models read the same ones. The full model has weights of 16 bits: for a
target from a GGUF file these are the file's own, unpacked. "as it is" is such a file run as it is, int8 and int4
quantise the full weights, and a .gguf file is another one of the same model. "KL" is the mean divergence from the full
model in nats, "agree" the share of positions at which both find the same token likeliest.
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

WINDOW = 512
AS_IT_IS = "as it is"


def log_probabilities(llm: outrider.LLM, ids: list[int]) -> Tensor:
    """[T - 1, V]: of every token after the first, given those before it."""
    session = llm.target.model.start(1, Shape(2 * WINDOW, WINDOW, fixed=False))
    session.admit(0, ids[:1])
    return session.score(torch.tensor([ids[1:]]))[0, :-1].log_softmax(-1)


def load(target: str, name: str) -> outrider.LLM:
    if name == "full":
        return outrider.load(target, None, "cpu", "float32")
    if name in ("int8", "int4"):
        return outrider.load(target, None, "cpu", weights=name)
    return outrider.load(target if name == AS_IT_IS else name, None, "cpu")


def compare(full: list[Tensor], llm: outrider.LLM, windows: list[list[int]]) -> tuple[float, float, float]:
    """Perplexity, mean divergence from the full model, and how often both agree."""
    surprise, apart, same = [], [], []
    for p, ids in zip(full, windows, strict=True):
        q = log_probabilities(llm, ids)
        surprise.append(-q.gather(1, torch.tensor(ids[1:])[:, None]))
        apart.append((p.exp() * (p - q)).sum(-1))
        same.append((p.argmax(-1) == q.argmax(-1)).float())
    means = [float(torch.cat(found).mean()) for found in (surprise, apart, same)]
    return math.exp(means[0]), means[1], means[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files of text to read")
    parser.add_argument("--windows", type=int, default=24, help="windows of 512 tokens to read at most")
    parser.add_argument("--against", nargs="+", default=[AS_IT_IS, "int8", "int4"])
    options = parser.parse_args()
    full = load(options.target, "full")
    ids = [token for file in options.text for token in full.tokenizer.encode(file.read_text(encoding="utf-8"))]
    windows = [ids[s : s + WINDOW] for s in range(0, len(ids) - WINDOW, WINDOW)[: options.windows]]
    expected = [log_probabilities(full, window) for window in windows]
    sys.stdout.write(f"{options.target}: {len(windows)} windows of {WINDOW} tokens\n")
    sys.stdout.write("| weights | engine | perplexity | KL | agree |\n| --- | --- | --- | --- | --- |\n")
    for name in ["full", *options.against]:
        llm = full if name == "full" else load(options.target, name)
        perplexity, apart, same = compare(expected, llm, windows)
        engine = llm.target.model.facts.engine
        sys.stdout.write(f"| {Path(name).name} | {engine} | {perplexity:.3f} | {apart:.5f} | {same:.1%} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    guarded(main)

"""What eight-bit weights change in a target: perplexity, how often the likeliest token differs, how long texts agree.

python recipes/weights_quality.py smollm2-135m --text docs/*.md

Texts are cut into windows of 512 tokens; both models read the same ones. "agree" is the share of positions at which
both find the same token likeliest. Then the first prompt of each task is answered greedily by both.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path

import torch
from torch import Tensor

import outrider
from outrider.bench.prompts import read
from outrider.core.protocols import Shape

WINDOW = 512


def log_probabilities(llm: outrider.LLM, ids: list[int]) -> Tensor:
    """[T - 1, V]: of every token after the first, given those before it."""
    session = llm.target.model.start(1, Shape(2 * WINDOW, WINDOW, fixed=False))
    session.admit(0, ids[:1])
    return session.score(torch.tensor([ids[1:]]))[0, :-1].log_softmax(-1)


def compare(full: outrider.LLM, small: outrider.LLM, ids: list[int]) -> tuple[float, float, float, float]:
    """Mean surprise of both in nats, mean divergence of the second from the first, and how often both agree."""
    p, q = (log_probabilities(llm, ids) for llm in (full, small))
    told = torch.tensor(ids[1:])[:, None]
    surprise = [-float(x.gather(1, told).mean()) for x in (p, q)]
    divergence = float((p.exp() * (p - q)).sum(-1).mean())
    return surprise[0], surprise[1], divergence, float((p.argmax(-1) == q.argmax(-1)).float().mean())


def common(one: list[int], two: list[int]) -> int:
    return next((k for k, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files of text to read")
    parser.add_argument("--windows", type=int, default=24, help="windows of 512 tokens to read at most")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    full, small = (outrider.load(options.target, None, weights=weights) for weights in ("full", "int8"))
    ids = [token for file in options.text for token in full.tokenizer.encode(file.read_text(encoding="utf-8"))]
    starts = range(0, len(ids) - WINDOW, WINDOW)[: options.windows]
    means = [statistics.mean(v) for v in zip(*(compare(full, small, ids[s : s + WINDOW]) for s in starts), strict=True)]
    sys.stdout.write(
        f"{len(starts)} windows: perplexity {math.exp(means[0]):.3f} full, {math.exp(means[1]):.3f} int8 "
        f"({math.exp(means[1] - means[0]) - 1:+.2%}); divergence {means[2]:.4f} nats; agree {means[3]:.1%}\n"
    )
    for task, prompts in read(None, 1).items():
        asked = full.chat_prompt([{"role": "user", "content": prompts[0]}])
        one, two = (llm.generate(asked, max_new_tokens=options.max_new_tokens).tokens for llm in (full, small))
        sys.stdout.write(f"{task}: the first {common(one, two)} of {len(one)} greedy tokens agree\n")


if __name__ == "__main__":
    main()

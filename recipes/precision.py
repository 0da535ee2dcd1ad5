"""How far the next token's distribution is from the float32 model's, for each way of computing it.

python recipes/precision.py smollm2-135m docs/cpu.md docs/exactness.md
python recipes/precision.py smollm2-135m text.txt --tokens 1024 --ways numba:float16,transformers:bfloat16

Ways are ENGINE:DTYPE of Outrider, and transformers:DTYPE. Every text is read from its beginning, token by token of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from mistakes import guarded
from torch import Tensor

from outrider.core.protocols import Shape
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading, names

Scorer = Callable[[Tensor], Tensor]
"""Tokens [1, N] -> logits [N, V]."""


def by_transformers(target: str, dtype: str) -> Scorer:
    from transformers import AutoModelForCausalLM

    place = names.directory(target)
    names.unpack(place)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=loading.DTYPES[dtype])
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.forward = partial(summed_in_float32, layer)  # type: ignore[method-assign]
    return lambda ids: model(ids).logits[0].float()


def summed_in_float32(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    """What hardware for narrow numbers computes. torch does so, too, but on CPUs without it takes minutes for it."""
    bias = None if layer.bias is None else layer.bias.float()
    return torch.nn.functional.linear(x.float(), layer.weight.float(), bias).to(x.dtype)


def by_engine(target: str, engine: str, dtype: str) -> Scorer:
    model = loading.load(target, "cpu", dtype, kernels=Kernels(engine)).model

    def score(ids: Tensor) -> Tensor:
        session = model.start(1, Shape(ids.shape[1] + 1, ids.shape[1], fixed=False))
        session.admit(0, ids[0, :1].tolist())
        return session.score(ids[:, 1:])[0]

    return score


def scorer(target: str, way: str) -> Scorer:
    engine, _, dtype = way.partition(":")
    return by_transformers(target, dtype) if engine == "transformers" else by_engine(target, engine, dtype)


def logs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=512, help="of each text, from its beginning")
    parser.add_argument("--ways", default="numba:float32,numba:float16,transformers:bfloat16,transformers:float16")
    options = parser.parse_args()
    tokenizer = loading.description(names.directory(options.target))[1]
    texts = [tokenizer.encode(path.read_text(encoding="utf-8"))[: options.tokens] for path in options.texts]
    ids = [torch.tensor([text]) for text in texts]
    reference = scorer(options.target, "transformers:float32")
    expected = [reference(text) for text in ids]
    following = torch.cat([text[0, 1:] for text in ids])[:, None]

    def surprise(logits: list[Tensor]) -> float:
        told = torch.cat([logs(text[:-1]) for text in logits])
        return float(-told.gather(1, following).mean())

    places = sum(len(text) for text in expected)
    sys.stdout.write(f"{options.target}, {places} tokens of {len(ids)} texts, against transformers in float32\n")
    sys.stdout.write(f"{'':24s} mean KL (nats)  largest |logit difference|  same first choice  perplexity\n")
    sys.stdout.write(f"{'transformers:float32':24s} {'':54s} {torch.tensor(surprise(expected)).exp():14.5f}\n")
    for way in options.ways.split(","):
        score = scorer(options.target, way)
        found = [score(text) for text in ids]
        apart = [(logs(a).exp() * (logs(a) - logs(b))).sum(-1) for a, b in zip(expected, found, strict=True)]
        furthest = max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))
        same = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in zip(expected, found, strict=True))
        perplexity = torch.tensor(surprise(found)).exp()
        mean = float(torch.cat(apart).mean())
        sys.stdout.write(f"{way:24s} {mean:14.2e} {furthest:27.4f} {same:8d} of {places:6d} {perplexity:14.5f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    guarded(main)

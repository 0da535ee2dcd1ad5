"""Whether a target can draft for itself: its first layers, or some of its layers, with its own output layer.

    python recipes/early_exit.py smollm2-135m
    python recipes/early_exit.py smollm2-135m --device cuda --tokens 128 --prompts 12

The target writes answers to the built-in prompts, plainly. Behind every token of an answer the distribution q of the
shortened model is compared with the target's p: alpha at temperature 0 is how often their likeliest tokens agree, at
temperature 1 the sum of min(p, q). A guess costs the layers that it runs and the output layer, by their weights: c.
What Theorem 3.8 makes of both, at the best gamma, is the most that such a draft can gain where runs are bound by
reading weights; by Corollary 3.9 it gains something only where alpha is above c. Both alphas are taken behind the
target's greedy text. "first k": layers 1 to k, whose keys and values the target makes anyway. Where other layers are
left out, a draft needs keys and values of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import outrider  # isort: skip  # before torch: its threads then sleep while they wait, as in every command of outrider
import torch
from mistakes import check_least, guarded
from torch import Tensor

from outrider.bench.prompts import SAMPLE
from outrider.errors import require
from outrider.models.hub.loading import load
from outrider.models.settings import has_chat_template
from outrider.theory import optimal_gamma, speedup

Skipped = tuple[str, list[int]]  # what it is called, and the layers that are run


@dataclass(frozen=True)
class Shortened:
    """What a shortened model would bring as a draft."""

    layers: str
    run: int  # layers that a guess runs
    cost: float  # c: weights of a guess over weights of a run
    alpha_0: float
    alpha_1: float

    def best(self, alpha: float) -> tuple[int, float]:
        """The gamma that Theorem 3.8 prefers, 0 where none pays, and its speed-up."""
        gamma = optimal_gamma(min(alpha, 0.999), self.cost, 16)
        return (gamma, speedup(alpha, gamma, self.cost)) if gamma else (0, 1.0)


def choices(layers: int) -> Iterator[Skipped]:
    for share in (0.2, 0.4, 0.6, 0.8, 0.9):
        count = round(share * layers)
        yield f"first {count}", list(range(count))
    for every in (2, 3):
        kept = [layer for layer in range(layers) if layer % every != 1 or layer in (0, layers - 1)]
        yield f"without every {every}. layer", kept
    for share in (0.2, 0.4):
        left_out = round(share * layers)
        first = (layers - left_out) // 2
        kept = [layer for layer in range(layers) if not first <= layer < first + left_out]
        yield f"without {first + 1} to {first + left_out}", kept


@torch.no_grad()
def distributions(model: torch.nn.Module, texts: list[tuple[Tensor, int]], kept: list[int]) -> list[Tensor]:
    """Logits behind the tokens of every answer, with these layers alone."""
    whole = model.model.layers
    model.model.layers = torch.nn.ModuleList(whole[layer] for layer in kept)
    try:
        found = []
        for text, prompt in texts:
            found.append(model(text[None], use_cache=False).logits[0, prompt - 1 : -1].float())
        return found
    finally:
        model.model.layers = whole


def answered(name: str, device: str, tokens: int, prompts: int) -> list[tuple[Tensor, int]]:
    """What the target is asked and writes, greedily, as tokens, and how many of them are the prompt."""
    llm = outrider.load(name, draft=None, device=device)
    asked = [text for pair in zip(*SAMPLE.values(), strict=True) for text in pair][:prompts]
    texts = []
    for text in asked:
        chats = has_chat_template(llm.tokenizer)
        prompt = list(llm.chat_prompt([{"role": "user", "content": text}]) if chats else llm.encode(text))
        answer = llm.generate(prompt, max_new_tokens=tokens, temperature=0).tokens
        texts.append((torch.tensor(prompt + list(answer)), len(prompt)))
    return texts


def measured(name: str, device: str, tokens: int, prompts: int) -> list[Shortened]:
    model = load(name, device, "float32").transformers_model.model
    config = model.config
    require(config.model_type == "llama", f"{name!r} is of the family {config.model_type!r}; name a Llama")
    texts = [(text.to(model.device), prompt) for text, prompt in answered(name, device, tokens, prompts)]
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    output = config.vocab_size * config.hidden_size
    true = distributions(model, texts, list(range(config.num_hidden_layers)))
    found = []
    for called, kept in choices(config.num_hidden_layers):
        guessed = distributions(model, texts, kept)
        pairs = list(zip(true, guessed, strict=True))
        agree = torch.cat([p.argmax(-1) == q.argmax(-1) for p, q in pairs]).float().mean()
        overlap = torch.cat([torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1) for p, q in pairs]).mean()
        cost = (len(kept) * layer + output) / (config.num_hidden_layers * layer + output)
        found.append(Shortened(called, len(kept), cost, float(agree), float(overlap)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a Llama by name or directory")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=64, help="of every answer")
    parser.add_argument("--prompts", type=int, default=12, help="of the built-in sample, at most 12")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    check_least(chosen, prompts=1, tokens=1)
    rows = measured(chosen.target, chosen.device, chosen.tokens, chosen.prompts)
    if chosen.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")
        return
    sys.stdout.write(
        "layers                  c      alpha, t=0  best gamma  speed-up  alpha, t=1  best gamma  speed-up\n"
    )
    for row in rows:
        (greedy, gains), (drawn, more) = row.best(row.alpha_0), row.best(row.alpha_1)
        sys.stdout.write(
            f"{row.layers:22}  {row.cost:.3f}  {row.alpha_0:10.3f}  {greedy:10}  {gains:8.2f}  {row.alpha_1:10.3f}"
            f"  {drawn:10}  {more:8.2f}\n"
        )


if __name__ == "__main__":
    guarded(main)

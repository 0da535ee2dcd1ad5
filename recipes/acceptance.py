"""What other rules would keep of the same drafts: block verification, lenience, a draft with options of its own.

python recipes/acceptance.py smollm2-135m --temperature 1 --draft src/outrider/data/drafts/smollm2-135m

Text is generated with maximal coupling. For every draft on the way the expected number of guesses kept is computed
from p and q, token by token and jointly; for every guess examined, the overlap under each lenience and each
standardisation of the draft. Expectations of the same drafts differ less than counts of different texts do.
At temperature 0, or with --lenience, only what was really kept is counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from mistakes import guarded
from torch import Tensor

import outrider
from outrider.bench.prompts import read
from outrider.core.noise import Noise
from outrider.core.protocols import Draft, Verdict
from outrider.core.sampling import Sampling, standardise
from outrider.core.verification import choose
from outrider.core.verification.block import prefix_weights
from outrider.core.verification.maximal import maximal_coupling
from outrider.trace import merge, summarise

LENIENCES = (1.0, 0.5, 0.3, 0.1)
FACTORS = (0.0, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
"""The draft's temperature over the target's."""


class Watching:
    """Maximal coupling that adds up, beside its verdicts, what the other rules would have kept."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # sum, count

    def rule(self, p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        verdict = maximal_coupling(p, draft, noise, at)
        if draft.tokens.shape[1] == 0:
            return verdict
        self._joint(p, draft)
        place = torch.arange(draft.tokens.shape[1], device=p.device)
        examined = draft.proposed & (place <= verdict.accepted[:, None])  # [B, G]
        for lenience in LENIENCES:
            self._add(f"alpha, lenience {lenience:g}", draft.overlap(p / lenience)[examined])
        if draft.probs is not None:
            self._own(p, draft, examined)
        return verdict

    def _joint(self, p: Tensor, draft: Draft) -> None:
        guesses = draft.tokens.shape[1]
        p_of_x = p[:, :guesses].gather(-1, draft.tokens[..., None])[..., 0].double()
        token_wise = (p_of_x / draft.of_tokens().double()).clamp(max=1).cumprod(-1)
        self._add("guesses kept per run, maximal", (token_wise * draft.proposed).sum(-1))
        self._add("guesses kept per run, block", (prefix_weights(p, draft)[:, 1:] * draft.proposed).sum(-1))

    def _own(self, p: Tensor, draft: Draft, examined: Tensor) -> None:
        assert draft.probs is not None
        logits = draft.probs.log() * self.temperature  # up to a constant
        ways = {f"temperature {t * self.temperature:.3g}": Sampling(t * self.temperature) for t in FACTORS}
        ways |= {f"top-k {k}": Sampling(self.temperature, top_k=k) for k in (5, 20)}
        ways |= {f"top-p {share}": Sampling(self.temperature, top_p=share) for share in (0.8, 0.9)}
        for name, sampling in ways.items():
            # The context is read for penalties only, and there are none.
            q = standardise(logits, sampling, None, draft.tokens)  # type: ignore[arg-type]
            overlap = replace(draft, probs=q).overlap(p)
            self._add(f"alpha, draft at {name}", overlap[examined])

    def _add(self, name: str, values: Tensor) -> None:
        self.totals[name][0] += float(values.sum())
        self.totals[name][1] += values.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--lenience", type=float, nargs="+", default=[1.0])
    parser.add_argument("--gamma", type=int, default=None)
    parser.add_argument("--per-task", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    asked = parser.parse_args()
    llm = outrider.load(asked.target, asked.draft, slots=1)
    watching = Watching(asked.temperature)
    choose.VERIFIERS["maximal"] = replace(maximal_coupling, rule=watching.rule)
    sys.stdout.write(f"{asked.target} with {llm.drafter.name}, temperature {asked.temperature:g}\n")
    texts = [text for task in read(None, asked.per_task).values() for text in task]
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts]
    for lenience in asked.lenience:
        options: dict[str, Any] = {
            "temperature": asked.temperature, "gamma": asked.gamma, "max_new_tokens": asked.max_new_tokens,
            "lenience": lenience,
        }  # fmt: skip
        outputs = [llm.generate(prompt, seed=0, **options) for prompt in prompts]
        stats = summarise(merge(output.trace for output in outputs))
        sys.stdout.write(
            f"lenience {lenience:g}: alpha {stats.alpha:.3f}, counted {stats.alpha_counted:.3f}, "
            f"{stats.tokens_per_run:.3f} tokens per run, {stats.tokens} tokens\n"
        )
    for name, (total, count) in watching.totals.items():
        sys.stdout.write(f"{name:34s} {total / count:.4f}  (n {count:.0f})\n")


if __name__ == "__main__":
    guarded(main)

"""Runs on both ranks of a torchrun job: rank 0 generates with and without drafts, and writes what it got as JSON."""

from __future__ import annotations

import json
import sys
import warnings

import outrider

PROMPTS = ["the quick", "so", "hello there the", "a", "the quick the quick the"]
"""More than there are slots: a row's place in the KV cache is used again."""

WAYS = {
    "greedy": {},
    "gumbel": {"temperature": 1.2, "seed": 5, "coupling": "gumbel"},
    "beams": {"beams": 2},
}


def main(target: str, draft: str, out: str) -> None:
    found: dict[str, object] = {}
    plain = outrider.load(target, "none", slots=2, tensor_parallel=2)  # rank 1 stays here
    found["facts"] = [plain.target.model.facts.engine, plain.graphs]
    for name, options in WAYS.items():
        for drafter in ("none", "copy", draft, *([] if name == "beams" else [f"copy>{draft}"])):
            outputs = plain.with_draft(drafter).generate(PROMPTS, max_new_tokens=24, eos=(), **options)
            found[f"{name} {'model' if drafter == draft else drafter}"] = [
                (one.text, one.tokens, one.stats.accepted) for one in outputs
            ]
    other = outrider.load(draft, "copy", tensor_parallel=2)  # a second model on the same ranks
    found["other"] = other.generate("the quick", max_new_tokens=8).tokens
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])

"""Speed of transformers' ``generate`` with Outrider's loop over that with its own, in one process.

python recipes/transformers_cost.py smollm2-135m
python recipes/transformers_cost.py --random --dtypes float32,bfloat16 --batches 1,4 --json

Both kinds of call take turns, so that whatever else the machine does falls on both. A ratio above 1 says that Outrider
is faster. The spread is that of the ratios of single turns: their quartiles. ``--random`` makes a model of
SmolLM2-135M's shape with random weights, which needs no download; its text has nothing to copy, so it shows
what the loop itself costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch
import transformers as tf
from mistakes import guarded

import outrider

PROMPTS = (
    "The capital of France is",
    "Write a short story about a fox and a crow who live in a wood.",
    "def fibonacci(n):",
    "Correct the spelling: The quick brwon fox jumps over the lazy dog, and the lazy dog does not mind.",
)
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "top_p": {"do_sample": True, "top_p": 0.9, "top_k": 0},
}


def random_model() -> tf.PreTrainedModel:
    """SmolLM2-135M's shape."""
    config = tf.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config)


def inputs_of(model: Any, name: str | None, rows: int) -> dict[str, Any]:
    """Prompts of different lengths, padded on the left."""
    if name is None:
        lengths = [6 + 5 * (row % 4) for row in range(rows)]
        ids = torch.randint(3, 1000, (rows, max(lengths)), generator=torch.Generator().manual_seed(0))
        mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
        return {"input_ids": ids.to(model.device), "attention_mask": mask.long().to(model.device)}
    tokenizer = tf.AutoTokenizer.from_pretrained(name, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = [PROMPTS[row % len(PROMPTS)] for row in range(rows)]
    return dict(tokenizer(texts, return_tensors="pt", padding=True).to(model.device))


def seconds(model: Any, inputs: dict[str, Any], options: dict[str, Any]) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    model.generate(**inputs, **options)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measured(model: Any, inputs: dict[str, Any], options: dict[str, Any], turns: int, ours: dict[str, Any]) -> Any:
    """Medians of both over ``turns`` turns, behind one that is not counted."""
    taken: dict[str, list[float]] = {"plain": [], "outrider": []}
    for _ in range(turns + 1):
        torch.manual_seed(0)
        taken["plain"].append(seconds(model, inputs, options))
        taken["outrider"].append(seconds(model, inputs, options | ours))
    plain, through = (times[1:] for times in taken.values())
    ratios = [a / b for a, b in zip(plain, through, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    tokens = options["max_new_tokens"] * len(inputs["input_ids"])
    return {
        "plain_tokens_per_second": tokens / statistics.median(plain),
        "outrider_tokens_per_second": tokens / statistics.median(through),
        "ratio": statistics.median(plain) / statistics.median(through),
        "quartiles": [quartiles[0], quartiles[2]],
        "n": len(ratios),
    }


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("model", nargs="?", help="a model directory or hub id; a short name as `outrider models` lists it")
    add("--random", action="store_true", help="a model of SmolLM2-135M's shape with random weights")
    add("--dtypes", default="float32", help="with commas between: float32,bfloat16")
    add("--batches", default="1,4", help="numbers of rows")
    add("--samplings", default=",".join(SAMPLINGS), help="of " + ", ".join(SAMPLINGS))
    add("--drafts", default="auto", help='drafters, with commas between; "none" shows the loop alone')
    add("--tokens", type=int, default=64, help="new tokens of every row")
    add("--turns", type=int, default=5)
    add("--threads", type=int, help="threads of torch")
    add("--device", default="cpu")
    add("--json", action="store_true")
    return parser


def main() -> None:
    asked = arguments().parse_args()
    if (asked.model is None) != asked.random:
        sys.exit("name a model or pass --random, not both")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    name = None if asked.random else _directory(asked.model)
    rows = []
    for dtype in asked.dtypes.split(","):
        model = random_model() if name is None else tf.AutoModelForCausalLM.from_pretrained(name)
        model = model.to(asked.device, getattr(torch, dtype)).eval()
        for size in map(int, asked.batches.split(",")):
            inputs = inputs_of(model, name, size)
            for sampling in asked.samplings.split(","):
                for draft in asked.drafts.split(","):
                    length = {"max_new_tokens": asked.tokens, "min_new_tokens": asked.tokens}
                    ours = {"custom_generate": outrider.transformers_generate, "draft": draft}
                    found = measured(model, inputs, SAMPLINGS[sampling] | length, asked.turns, ours)
                    rows.append({"dtype": dtype, "batch": size, "sampling": sampling, "draft": draft} | found)
                    if not asked.json:
                        sys.stdout.write(_line(rows[-1]) + "\n")
    if asked.json:
        found = {"threads": torch.get_num_threads(), "device": asked.device, "rows": rows}
        sys.stdout.write(json.dumps(found, indent=1) + "\n")


def _directory(name: str) -> str:
    from outrider.models.hub.names import resolve

    return str(resolve(name))


def _line(row: dict[str, Any]) -> str:
    low, high = row["quartiles"]
    return (
        f"{row['dtype']:9} batch {row['batch']:2} {row['sampling']:7} {row['draft']:7} "
        f"transformers {row['plain_tokens_per_second']:7.1f} tok/s  "
        f"outrider {row['outrider_tokens_per_second']:7.1f} tok/s  "
        f"ratio {row['ratio']:.2f} ({low:.2f} to {high:.2f}, n={row['n']})"
    )


if __name__ == "__main__":
    guarded(main)

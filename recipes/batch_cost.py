"""Tokens per second of many rows at once: plain decoding, speculative decoding and transformers, in one process.

python recipes/batch_cost.py smollm2-135m --batches 1,2,4,8,16,32 --temperatures 0,1
python recipes/batch_cost.py t5-ende --requests 100 --batches 8,32,100 --dtypes float32
python recipes/batch_cost.py t5-ende --requests 20 --batches 1 --calls each --temperatures 0
python recipes/batch_cost.py smollm2-135m --device cuda --batches 1,4,16,64 --tokens 128 --dtypes ""
python recipes/batch_cost.py smollm2-135m --device cuda --requests 64 --batches 1 --calls each --dtypes ""

The ways take turns, so that whatever else the machine does falls on all of them. A ratio above 1 says that the first
way is faster; its spread is that of single turns: their quartiles. Rows of a causal model write ``--tokens`` tokens
each, whatever they are; an encoder-decoder model ends its texts itself. ``--requests`` are run ``batch`` at a time:
Outrider lets the next one in when a row ends, transformers runs one padded batch after another. With ``--calls each``
every request is a call of its own: one text at a time.
"same" counts the rows whose plain and speculative texts in the batch are those of the same request alone. Speculative
texts must be the same at temperature 0 and with ``--coupling gumbel``; at other temperatures only plain ones are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import outrider  # isort: skip  # before torch: its threads then sleep while they wait, as in every command of outrider
import torch
import transformers as tf
from mistakes import guarded

from outrider.bench import prompts
from outrider.models.hub import pairs
from outrider.models.hub.names import resolve

Tokens = list[list[int]]
Way = Callable[[], Tokens]


def requests_of(llm: Any, count: int, file: Path | None) -> Tokens:
    """Prompts of different lengths: a file's, or questions, or sentences for an encoder."""
    encodes = llm.target.model.encoder_decoder
    tasks = prompts.read(file, sources=encodes).values()
    most = max(map(len, tasks))
    texts = [text for turn in range(most) for task in tasks for text in task[turn : turn + 1]]
    given = [texts[row % len(texts)] for row in range(count)]
    chats = getattr(llm.tokenizer, "chat_template", None) is not None
    return [
        llm.chat_prompt([{"role": "user", "content": text}]) if chats else llm.encode(text)  # distinct, each of them
        for text in given
    ]


def ours(llm: Any, given: Tokens, options: dict[str, Any], each: bool = False) -> Tokens:
    if each:
        seeds = options.get("seed", [None] * len(given))
        return [
            list(llm.generate(one, **options | ({} if seed is None else {"seed": seed})).tokens)
            for one, seed in zip(given, seeds, strict=True)
        ]
    return [list(output.tokens) for output in llm.generate(given, **options)]


def theirs(model: Any, given: Tokens, batch: int, tokens: int, temperature: float) -> Tokens:
    """transformers' ``generate``, one batch after another, padded on the side where its family wants it."""
    config = model.config
    encodes, pad = config.is_encoder_decoder, config.pad_token_id or 0
    least = {} if encodes else {"min_new_tokens": tokens}
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    found: Tokens = []
    for first in range(0, len(given), batch):
        some = given[first : first + batch]
        widest = max(map(len, some))
        ids, mask = (torch.full((len(some), widest), value, device=model.device) for value in (pad, 0))
        for row, one in enumerate(some):
            place = slice(0, len(one)) if encodes else slice(widest - len(one), widest)
            ids[row, place], mask[row, place] = torch.tensor(one, device=model.device), 1
        texts = model.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, pad_token_id=pad, **least, **sampling
        ).tolist()
        found += [[token for token in row[1:] if token != pad] if encodes else row[widest:] for row in texts]
    return found


def taken_turns(ways: dict[str, Way], turns: int, warm: int) -> tuple[dict[str, list[float]], dict[str, Tokens]]:
    """Tokens per second of every way and turn, behind those that warm up; and the last texts."""
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, Tokens] = {}
    for turn in range(turns + warm):
        for name, way in list(ways.items())[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            texts[name] = way()
            seconds = time.perf_counter() - began
            if turn >= warm:
                speeds[name].append(sum(map(len, texts[name])) / seconds)
    return speeds, texts


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """Of medians, with the quartiles of single turns."""
    single = [a / b for a, b in zip(above, below, strict=True)]
    quartiles = statistics.quantiles(single, n=4) if len(single) > 1 else [single[0]] * 3
    return {
        "ratio": statistics.median(above) / statistics.median(below),
        "quartiles": [quartiles[0], quartiles[2]],
        "n": len(single),
    }


def measured(
    models: dict[str, Any], peers: dict[str, Any], batch: int, temperature: float, asked: argparse.Namespace
) -> dict[str, Any]:
    """One batch size at one temperature."""
    given = requests_of(models["plain"], asked.requests or batch, asked.prompts)
    options: dict[str, Any] = {"max_new_tokens": asked.tokens, "temperature": temperature}
    if not models["plain"].target.model.encoder_decoder:
        options["eos"] = ()
    if temperature:
        options |= {"coupling": asked.coupling} | ({} if asked.seed is None else {"seed": list(range(len(given)))})
    ways: dict[str, Way] = {}
    for name, llm in models.items():
        llm.slots = None if asked.slots == "default" else batch
        if llm.target.model.device.type == "cuda":
            llm.warm_up(batch, temperature=temperature)  # steps are recorded before they are timed
        ways[name] = lambda llm=llm: ours(llm, given, options, asked.calls == "each")  # type: ignore[misc]
    for name, model in peers.items():
        ways[name] = lambda model=model: theirs(model, given, batch, asked.tokens, temperature)  # type: ignore[misc]
    speeds, texts = taken_turns(ways, asked.turns, asked.warm)
    found: dict[str, Any] = {"batch": batch, "requests": len(given), "temperature": temperature}
    found["tokens_per_second"] = {name: statistics.median(taken) for name, taken in speeds.items()}
    found["auto_over_plain"] = ratio(speeds["auto"], speeds["plain"])
    if peers:
        best = max(peers, key=lambda name: statistics.median(speeds[name]))
        found |= {"best": best} | {
            f"{name}_over_transformers": ratio(speeds[name], speeds[best]) for name in ("plain", "auto")
        }
    if not asked.no_identity:
        found["same"] = {
            name: same_alone(models[name], given, texts[name], options)
            for name in models
            if name == "plain" or not temperature or asked.coupling == "gumbel"
        }
    return found


def same_alone(llm: Any, given: Tokens, texts: Tokens, options: dict[str, Any]) -> str:
    """Rows whose text is that of the same request alone; without a seed only greedy ones are compared."""
    if options["temperature"] and "seed" not in options:
        return "no seed"
    kept, llm.slots = llm.slots, None
    same = 0
    for row, (one, text) in enumerate(zip(given, texts, strict=True)):
        own = options | ({"seed": options["seed"][row]} if "seed" in options else {})
        same += ours(llm, [one], own)[0] == text
    llm.slots = kept
    return f"{same}/{len(given)}"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("model", help="a model directory or hub id; a short name as `outrider models` lists it")
    add("--batches", default="1,2,4,8,16,32", help="rows that run at once")
    add("--temperatures", default="0,1")
    add("--coupling", default="maximal", help="at temperatures above 0: maximal or gumbel")
    add("--seed", type=int, help="seeds of the rows count up from 0; without, the planner goes by the clock")
    add("--requests", type=int, help="how many are run; default: as many as the batch")
    add("--calls", default="all", choices=("all", "each"), help="each: a call for every request; all: one call")
    add("--slots", default="batch", choices=("batch", "default"), help="default: Outrider's own choice")
    add("--device", default="auto", help="of all ways: auto, cpu or cuda")
    add("--prompts", type=Path, help="a .jsonl file of prompts, as for `outrider bench cpu`; default: those built in")
    add("--dtypes", default="float32", help="of transformers, with commas between; empty: transformers is left out")
    add("--dtype", default="auto", help="of Outrider's target: auto, float32, bfloat16 or float16")
    add("--tokens", type=int, default=64, help="new tokens of every row, at most")
    add("--turns", type=int, default=5)
    add("--warm", type=int, default=1, help="turns before, which are not counted")
    add("--threads", type=int, help="threads of torch")
    add("--no-identity", action="store_true", help="compare no texts with those of the same request alone")
    add("--json", action="store_true")
    return parser


def main() -> None:
    asked = arguments().parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    plain = outrider.load(asked.model, draft=None, device=asked.device, dtype=asked.dtype)
    models = {"plain": plain, "auto": plain.with_draft("auto")}
    peers = {
        f"transformers {dtype}": transformers_model(asked.model, dtype).to(plain.target.model.device)
        for dtype in asked.dtypes.split(",")
        if dtype
    }
    rows = []
    for temperature in map(float, asked.temperatures.split(",")):
        for batch in map(int, asked.batches.split(",")):
            rows.append(measured(models, peers, batch, temperature, asked))
            if not asked.json:
                sys.stdout.write(_line(rows[-1]) + "\n")
                sys.stdout.flush()
    if asked.json:
        engine = plain.target.model.facts.engine
        sys.stdout.write(
            json.dumps({"threads": torch.get_num_threads(), "engine": engine, "rows": rows}, indent=1) + "\n"
        )


def transformers_model(name: str, dtype: str) -> Any:
    pair = pairs.find(name)
    folder = resolve(name) if pair is None else pair / "target"
    config = tf.AutoConfig.from_pretrained(folder)
    kind = tf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else tf.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def _line(row: dict[str, Any]) -> str:
    speeds = "  ".join(f"{name} {speed:.1f}" for name, speed in row["tokens_per_second"].items())
    ratios = "  ".join(
        f"{name.replace('_', ' ')} {row[name]['ratio']:.2f} ({row[name]['quartiles'][0]:.2f} to "
        f"{row[name]['quartiles'][1]:.2f}, n={row[name]['n']})"
        for name in ("auto_over_plain", "plain_over_transformers", "auto_over_transformers")
        if name in row
    )
    same = "  ".join(f"same {name} {count}" for name, count in row.get("same", {}).items())
    return f"t={row['temperature']:g} batch {row['batch']:3}: tok/s {speeds}  {ratios}  {same}"


if __name__ == "__main__":
    guarded(main)

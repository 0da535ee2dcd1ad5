"""What speculative beam search gains over plain beam search, in one process: medians over short alternating searches.

    python recipes/beam_cost.py smollm2-135m --beams 2 --draft-beams 3 --gamma 1
    python recipes/beam_cost.py smollm2-135m --inflated --device cuda --beams 4

--inflated pads the target to eight billion weights that compute the same function (outrider.bench.inflate), with the
head that comes for the small one.

Three searches per prompt and round: speculative, plain with the same shapes, and plain without padding (w rows, one
token wide). Every ratio is of two searches for the same prompt that ran one after the other, so a machine that is
slower for a while is slower for both; the median of the ratios is printed with their quartiles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import outrider  # isort: skip  # before torch: its threads then sleep while they wait, as in every command of outrider
import torch
from mistakes import check_least, guarded

from outrider.bench.pair import inflated
from outrider.bench.prompts import SAMPLE
from outrider.models.hub.loading import choose_device
from outrider.trace import PHASES


def seconds_per_step(output: outrider.Output) -> float:
    """The prompt included: a drafter has to read it, too."""
    return sum(output.trace.seconds[phase] for phase in (*PHASES, "prefill")) / output.stats.tokens


def spread(ratios: Sequence[float]) -> str:
    low, _, high = quantiles(ratios, n=4)
    return f"{median(ratios):.2f} (quartiles {low:.2f} to {high:.2f}, {len(ratios)} searches)"


def loaded_llm(chosen: argparse.Namespace) -> outrider.LLM:
    return outrider.load(chosen.target, chosen.draft, device=chosen.device, dtype=chosen.dtype)


def inflated_llm(chosen: argparse.Namespace) -> outrider.LLM:
    head = None if chosen.draft == "auto" else Path(chosen.draft)
    made = inflated(chosen.target, head, torch.device(choose_device(chosen.device)), chosen.dtype)
    return outrider.LLM(made.loaded, made.drafter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--beams", type=int, default=2)
    parser.add_argument("--draft-beams", type=int)
    parser.add_argument("--gamma", type=int)
    parser.add_argument("--tokens", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=12, help="of the built-in sample, 2 to 12")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the target")
    parser.add_argument(
        "--inflated", action="store_true", help="pad the target to 8B weights; --draft: a head's directory"
    )
    chosen = parser.parse_args()
    check_least(chosen, beams=2, draft_beams=1, gamma=0, tokens=1, prompts=2)
    llm = inflated_llm(chosen) if chosen.inflated else loaded_llm(chosen)
    plain = outrider.LLM(llm.target, outrider.Nothing())
    narrow = outrider.LLM(llm.target, outrider.Nothing(), exact=False)
    options = {"beams": chosen.beams, "max_new_tokens": chosen.tokens, "eos": ()}
    shaped = {**options, "draft_beams": chosen.draft_beams, "gamma": chosen.gamma}
    texts = [text for pair in zip(*SAMPLE.values(), strict=True) for text in pair][: chosen.prompts]
    same, unpadded, steps, runs, identical = [], [], 0, 0, 0
    for number, text in enumerate(texts):
        asked = llm.chat_prompt([{"role": "user", "content": text}]) if llm.tokenizer.chat_template else text
        if number == 0:
            for engine, how in ((llm, shaped), (plain, shaped), (narrow, options)):  # warm-up, not counted
                engine.generate(asked, **{**how, "max_new_tokens": 3})
        ours = llm.generate(asked, **shaped)
        theirs = plain.generate(asked, **shaped)
        bare = narrow.generate(asked, **options)
        same.append(seconds_per_step(theirs) / seconds_per_step(ours))
        unpadded.append(seconds_per_step(bare) / seconds_per_step(ours))
        steps, runs = steps + ours.stats.tokens, runs + ours.stats.runs
        identical += ours.hypotheses == theirs.hypotheses
    shape = f"beams {chosen.beams}, draft beams {chosen.draft_beams}, gamma {chosen.gamma}"
    lines = [
        f"{chosen.target} with {llm.drafter.name}: {shape}",
        f"steps per target run {steps / runs:.2f}; identical to plain: {identical} of {len(texts)} searches",
        f"speed-up against plain of the same shapes: {spread(same)}",
        f"speed-up against plain without padding:    {spread(unpadded)}",
    ]
    sys.stdout.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    guarded(main)

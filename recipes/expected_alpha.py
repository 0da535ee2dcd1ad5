"""What acceptance a head has on the answers of its target: expected over all drafts, not counted on one run.

    python recipes/expected_alpha.py smollm2-135m --draft DIR --draft OTHER --prompts questions.jsonl --answers 4

The target answers every prompt, many at a time. With maximal coupling the text of speculative decoding is distributed
like these answers, and given the text a guess is kept with chance min(1, q/p) of the token that stands there (at
temperature 0: if it is that token). So one look at the answers gives the chance of every run to begin at every place,
of every guess to be examined, and its overlap: the same alpha that `outrider measure` counts with a fixed gamma, with
less noise, and two drafts are compared on the same texts. Beside it: the tokens that a run of the target gives with
that gamma, and alpha of the first guess at every place. Intervals: 95 %, bootstrap over prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from mistakes import guarded
from torch import Tensor

from outrider.bench.intervals import bootstrap
from outrider.bench.prompts import read
from outrider.drafters.head import HeadDrafter
from outrider.models.hub import loading
from outrider.training.answers import messages
from outrider.training.data import Corpus, Pair, from_answers
from outrider.training.head_students import HeadStudent
from outrider.training.students import Guesses, Vocabulary
from outrider.training.teacher import Teacher
from outrider.training.writing import write


def student_of(folder: Path, target: loading.Loaded, gamma: int) -> HeadStudent:
    drafter = HeadDrafter.load(folder)
    vocabulary = Vocabulary(drafter.tokens, target.model.vocab_size, target.model.device)
    return HeadStudent(Teacher(target.model), drafter.head.to(target.model.device), vocabulary, gamma)


class Expected(NamedTuple):
    """Of one text, or summed over several: expected over all ways to draft it."""

    shared: float = 0.0  # sum of the overlaps of guesses that are examined
    examined: float = 0.0  # their number
    tokens: float = 0.0  # of the text behind the first run
    runs: float = 0.0  # of the target
    first: float = 0.0  # sum of the overlaps of first guesses, at every place
    places: float = 0.0

    def __add__(self, other: tuple[float, ...]) -> Expected:  # type: ignore[override]
        return Expected(*(mine + its for mine, its in zip(self, other, strict=True)))


@torch.no_grad()
def alpha_parts(student: HeadStudent, batch: Corpus, temperature: float) -> list[Expected]:
    """For every text what is expected of it."""
    with torch.autocast("cuda", torch.bfloat16, enabled=student.teacher.device.type == "cuda"):
        guesses = student.guesses(batch)
    overlaps, keeps = (_by_beginning(guesses, batch, temperature, kept) for kept in (False, True))
    first = [row.nonzero()[0, 0] - 2 if row.any() else 0 for row in batch.counts]
    return [
        _expected(overlap, kept, max(0, int(at)))
        for overlap, kept, at in zip(overlaps.tolist(), keeps.tolist(), first, strict=True)
    ]


def _by_beginning(guesses: Sequence[Guesses], batch: Corpus, temperature: float, kept: bool) -> Tensor:
    """[B, T, G]: overlap of the k-th guess of a draft that begins there, or its chance to be kept; -1: no guess."""
    table = torch.full((*batch.tokens.shape, len(guesses)), -1.0)
    for k, guess in enumerate(guesses, 1):
        if temperature == 0:
            values = (guess.logits.argmax(-1) == guess.choice).float()
        else:
            q = (guess.logits.float() / temperature).softmax(-1)
            of_text = guess.labels.clamp(min=0)[:, None]
            ratio = (q.gather(-1, of_text) / guess.p.gather(-1, of_text).clamp(min=1e-30))[:, 0].clamp(max=1)
            chance = torch.where(guess.labels >= 0, ratio, 0.0)
            values = chance if kept else torch.minimum(guess.p, q).sum(-1)
        there = guess.counts > 0
        table[guess.positions.rows[there].cpu(), guess.positions.columns[there].cpu() - k - 1, k - 1] = values[
            there
        ].cpu()
    return table


def _expected(overlap: list[list[float]], kept: list[list[float]], first: int) -> Expected:
    """Expected over all ways to draft one text, of which tokens count from place ``first`` on."""
    begins = [0.0] * (len(overlap) + len(overlap[0]) + 2)
    begins[first] = 1.0
    shared = examined = 0.0
    guessed = [row[0] for row in overlap[first:] if row[0] >= 0]
    for place in range(first, len(overlap)):
        chance = begins[place]
        for k, (value, keep) in enumerate(zip(overlap[place], kept[place], strict=True)):
            if value < 0 or chance == 0:  # behind the end of the text
                break
            shared, examined = shared + chance * value, examined + chance
            begins[place + k + 1] += chance * (1 - keep)  # k kept, and one of the target's own
            chance *= keep
        else:
            begins[place + len(overlap[0]) + 1] += chance
    runs = sum(begins[first : first + len(guessed)])
    return Expected(shared, examined, len(guessed), runs, sum(guessed), len(guessed))


def answered(
    target: loading.Loaded, prompts: Sequence[str], new_tokens: int, temperature: float, batch: int, seed: int
) -> list[Pair]:
    """In the order of the prompts."""
    asked = messages(target, prompts)
    found = {}
    for prompt, answer in write(
        target.model, target.tokenizer, asked, new_tokens=new_tokens, temperature=temperature, batch=batch, seed=seed
    ):
        found.setdefault(tuple(prompt), []).append(answer)
    return [(prompt, found[tuple(prompt)].pop()) for prompt in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", type=Path, action="append", required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--per-task", type=int)
    parser.add_argument("--answers", type=int, default=1, help="to each prompt, at temperatures above 0")
    parser.add_argument("--temperature", type=float, action="append", choices=[0.0, 1.0])
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512, help="texts written at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    target = loading.load(options.target, options.device, options.dtype)
    tasks = [(task, prompt) for task, group in read(options.prompts, options.per_task).items() for prompt in group]
    students = {str(folder): student_of(folder, target, options.gamma) for folder in options.draft}
    for temperature in options.temperature or [0.0, 1.0]:
        pairs: list[list[Pair]] = [[] for _ in tasks]
        for turn in range(options.answers if temperature else 1):
            texts = [prompt for _, prompt in tasks]
            fresh = answered(target, texts, options.max_new_tokens, temperature, options.batch, options.seed + turn)
            for kept, pair in zip(pairs, fresh, strict=True):
                kept.append(pair)
        corpus = from_answers([pair for mine in pairs for pair in mine], 1 << 30)
        each = len(pairs[0])
        for name, student in students.items():
            rows = [
                part
                for i in range(0, len(corpus), 16)
                for part in alpha_parts(student, corpus.take(slice(i, i + 16)), temperature)
            ]
            parts = [sum(rows[i : i + each], Expected()) for i in range(0, len(rows), each)]
            for task in dict.fromkeys(task for task, _ in tasks) | {"all": None}:
                chosen = [part for part, (its, _) in zip(parts, tasks, strict=True) if task in ("all", its)]
                low, high = bootstrap([(part.shared, part.examined) for part in chosen])
                all_of = sum(chosen, Expected())
                row = {"draft": name, "temperature": temperature, "task": task, "prompts": len(chosen)}
                row |= {
                    "alpha": round(all_of.shared / all_of.examined, 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                }
                row |= {"tokens_per_run": round(all_of.tokens / all_of.runs, 3)}
                row |= {"first_guess": round(all_of.first / all_of.places, 4)}
                sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    guarded(main)

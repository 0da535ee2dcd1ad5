"""Training text that the target writes itself, in rounds: answers to given prompts, or to prompts it made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch

from outrider.models.hub.loading import Loaded
from outrider.models.settings import has_chat_template
from outrider.training.data import Corpus, Pair, from_answers
from outrider.training.progress import Gathering
from outrider.training.rounds import Rounds, size
from outrider.training.slot_writer import KeepGoing
from outrider.training.writing import user_turn_opener, write

LONGEST_PROMPT = 1024


@dataclass(frozen=True)
class SelfText:
    """How a target writes its own training text."""

    tokens: int  # prompts and answers, about
    temperatures: tuple[float, ...] = (0.0, 1.0)  # of the answers, round by round in turn
    new_tokens: int = 256
    batch: int = 64
    block: int = 512
    seed: int = 0


def self_written(
    loaded: Loaded, plan: SelfText, prompts: Sequence[str], gathering: Gathering, kept: Rounds | None = None
) -> Corpus:
    """Answers of the target to prompts that are given, and to prompts it made up itself from an empty user turn.

    Rounds follow from the plan alone, and finished ones are kept: a killed run goes on with the next. Ctrl-C and the
    end of the time end the round where it is.
    """
    kept = kept or Rounds()
    # On a GPU texts are written in slots, which wants many at once; elsewhere a round is one batch.
    batches = max(1, plan.tokens // (plan.new_tokens * plan.batch * 8)) if loaded.transformers_model.fused else 1
    pairs: list[Pair] = []
    for number in count():
        if gathering.done:
            break
        known = kept.load(number)
        fresh = (
            write_round(loaded, plan, prompts, number, plan.batch * batches, gathering, kept)
            if known is None
            else known
        )
        gathering.add(len(fresh), size(fresh), read=known is not None)
        pairs += fresh
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(plan.seed)).tolist()
    return from_answers([pairs[i] for i in order], plan.block)


def write_round(
    loaded: Loaded, plan: SelfText, prompts: Sequence[str], number: int, texts: int, gathering: Gathering, kept: Rounds
) -> list[Pair]:
    asked = round_prompts(loaded, plan, prompts, number, texts, gathering.until(1 / 3))
    pairs: list[Pair] = []
    try:
        for prompt, answer in write(
            loaded.transformers_model, loaded.tokenizer, asked, new_tokens=plan.new_tokens,
            temperature=plan.temperatures[number % len(plan.temperatures)], batch=plan.batch, seed=plan.seed + number,
            keep_going=gathering.until(),
        ):  # fmt: skip
            if answer:
                pairs.append((prompt, answer))
    finally:
        if pairs:
            kept.save(number, pairs)
    return pairs


def round_prompts(
    loaded: Loaded, plan: SelfText, prompts: Sequence[str], number: int, texts: int, keep_going: KeepGoing
) -> list[list[int]]:
    """Prompts for a round: the next of those given, as a user's message where there is a chat template.

    Every third round the target makes up its own, so that given prompts do not narrow what it writes.
    """
    if prompts and number % 3 != 2:
        first = (number - number // 3) * texts
        return messages(loaded, [prompts[(first + i) % len(prompts)] for i in range(texts)])
    opener = loaded.tokenizer.encode(user_turn_opener(loaded.tokenizer), add_special_tokens=False) or [0]
    written = write(
        loaded.transformers_model, loaded.tokenizer, [opener] * texts, new_tokens=96, temperature=1.0, batch=plan.batch,
        seed=plan.seed + 500_000 + number, keep_going=keep_going,
    )  # fmt: skip
    if not has_chat_template(loaded.tokenizer):
        return [[*opener, *words] for _, words in written]
    words = loaded.tokenizer.batch_decode([words for _, words in written], skip_special_tokens=True)
    return messages(loaded, [text.strip() for text in words if text.strip()])


def messages(loaded: Loaded, texts: Sequence[str]) -> list[list[int]]:
    """All at once: the tokenizer then uses every core."""
    if not texts:
        return []
    chat = has_chat_template(loaded.tokenizer)
    if chat:
        turns = [[{"role": "user", "content": text}] for text in texts]
        texts = loaded.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    encoded = loaded.tokenizer(list(texts), add_special_tokens=not chat)["input_ids"]
    return [list(ids)[-LONGEST_PROMPT:] for ids in encoded]

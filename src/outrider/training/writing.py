"""Batched generation of training text by the target, thousands of sequences at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from outrider.errors import BadOption
from outrider.models.settings import has_chat_template
from outrider.models.transformers.kv_cache import GrowingCache
from outrider.models.transformers.model import HuggingFaceModel
from outrider.training.slot_writer import KeepGoing, ends_of, roll

GROUPED = "outrider_grouped"
COMPACT_EVERY = 32
"""Steps between checks of which sequences have ended: each check is a host-device sync."""


def user_turn_opener(tokenizer: PreTrainedTokenizerBase) -> str:
    """What stands before a user's words: let the target go on from there and it writes a user's words itself."""
    if not has_chat_template(tokenizer):
        return tokenizer.bos_token or ""
    mark = "\u241f"
    text = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    return str(text).split(mark)[0]


@torch.no_grad()
def write(
    model: HuggingFaceModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    temperature: float,
    batch: int,
    seed: int,
    keep_going: KeepGoing = lambda texts, tokens: True,
) -> Iterator[tuple[Sequence[int], list[int]]]:
    """Answers to prompts, many at a time: (prompt, answer) pairs.

    Batches hold prompts of similar length; which prompt is in which batch, and the seed of each batch, follow from
    the arguments alone, so a run can be repeated. ``keep_going`` is called after every step with the texts that are
    being written and their tokens so far, about: once it says no, they end where they are. So they do on Ctrl-C,
    which is raised again behind them.
    """
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise BadOption(
            "the tokenizer has neither a pad nor an eos token: give text files with --data instead of --self"
        )
    if model.fused and prompts:
        fitting = [_fitting(prompt, model) for prompt in prompts]
        rows = max(1, batch * 512 // (max(map(len, fitting)) + new_tokens))  # memory goes by tokens, as below
        chance = torch.Generator(model.device).manual_seed(seed * 1_000_003)
        yield from roll(
            model, fitting, new_tokens=new_tokens, rows=min(rows, batch),
            choose=lambda logits: _draw(logits, temperature, chance), keep_going=keep_going,
        )  # fmt: skip
        return
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    start, watch = 0, _Watch(keep_going)
    while start < len(order) and not watch.stopped:
        chosen = [_fitting(prompts[i], model) for i in order[start : start + batch]]
        # Longer texts, fewer at a time: memory goes by tokens.
        chosen = [p for k, p in enumerate(chosen) if (k + 1) * (len(p) + new_tokens) <= batch * 512] or chosen[:1]
        start += len(chosen)
        longest = max(len(p) for p in chosen)
        ids = torch.full((len(chosen), longest), pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(chosen):
            # A decoder goes on from the end of its prompt; an encoder counts positions from the beginning.
            place = slice(0, len(prompt)) if model.encoder_decoder else slice(longest - len(prompt), longest)
            ids[row, place] = torch.tensor(list(prompt))
            mask[row, place] = 1
        ids, mask = ids.to(model.device), mask.to(model.device)
        room = new_tokens if model.max_length is None else model.max_length - (1 if model.encoder_decoder else longest)
        room = min(new_tokens, room)
        chance = torch.Generator(model.device).manual_seed(seed * 1_000_003 + start)
        if model.encoder_decoder:
            answers = _by_generate(model, ids, mask, pad, room, temperature, seed * 1_000_003 + start, watch)
        else:
            with _grouped_attention(model.model):
                answers = _continue(model, ids, mask, room, temperature, chance, watch)
        for prompt, row in zip(chosen, answers.tolist(), strict=True):
            yield prompt, _until_end(row, ends_of(model))
    if watch.interrupted is not None:
        raise watch.interrupted


class _Watch:
    """Whether the texts of a batch go on: until somebody says no, or presses Ctrl-C."""

    def __init__(self, keep_going: KeepGoing) -> None:
        self._going_on = keep_going
        self._before = self._now = 0  # tokens of the batches before, and of this one
        self.stopped = False
        self.interrupted: KeyboardInterrupt | None = None

    def step(self, rows: int, live: int, step: int) -> bool:
        """After a step that has given ``live`` of ``rows`` texts one more token each."""
        self._before, self._now = (self._before + self._now, live) if step == 0 else (self._before, self._now + live)
        self.stopped = self.stopped or not self._going_on(rows, self._before + self._now)
        return self.stopped

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Ctrl-C inside ends the block, and is raised again when what was written has been handed on."""
        try:
            yield
        except KeyboardInterrupt as pressed:
            self.stopped, self.interrupted = True, pressed


def _fitting(prompt: Sequence[int], model: HuggingFaceModel) -> Sequence[int]:
    """No more than the model knows positions for: a source's beginning, or the end of what is to be gone on from."""
    limit = model.max_length
    if limit is None:
        return prompt
    return prompt[:limit] if model.encoder_decoder else prompt[-max(1, limit // 2) :]


def _by_generate(
    model: HuggingFaceModel, ids: Tensor, mask: Tensor, pad: int, new_tokens: int, temperature: float, seed: int,
    watch: _Watch,
) -> Tensor:  # fmt: skip
    torch.manual_seed(seed)
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    rows = len(ids)
    written: Tensor = ids.new_full((rows, 1), pad)  # as far as it has come

    def look(tokens: Tensor, scores: Any, **_: Any) -> Tensor:
        nonlocal written
        written = tokens
        return torch.full((rows,), watch.step(rows, rows, tokens.shape[1] - 2), device=tokens.device)

    with watch.keeping():
        written = model.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=new_tokens, pad_token_id=pad,
            num_beams=1,  # some translators ask for beams, which no draft is made for
            stopping_criteria=[look], **sampled,
        )  # fmt: skip
    return written[:, 1:]


def _continue(
    model: HuggingFaceModel, ids: Tensor, mask: Tensor, new_tokens: int, temperature: float, chance: torch.Generator,
    watch: _Watch,
) -> Tensor:  # fmt: skip
    """Rows [B, T], padded on the left, continued all together -> [B, new_tokens]; -1 where a row had ended.

    transformers' own generate copies its whole cache at every token; here it is a buffer, and rows that have ended
    are dropped now and then.
    """
    rows, longest = ids.shape
    ends = torch.tensor(sorted(ends_of(model)), device=ids.device)
    written = torch.full((rows, new_tokens), -1, dtype=torch.int64, device=ids.device)
    live = torch.arange(rows, device=ids.device)  # the rows still in the batch
    going = torch.ones(rows, dtype=torch.bool, device=ids.device)
    mask = torch.cat([mask, mask.new_ones((rows, new_tokens))], 1)
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = GrowingCache(longest + new_tokens)
    only_last = {"logits_to_keep": 1} if "logits_to_keep" in model.accepts else {}
    tokens = ids
    with watch.keeping():
        for step in range(new_tokens):
            here = slice(0 if step == 0 else longest + step - 1, longest + step)
            logits = model.model(
                input_ids=tokens, attention_mask=mask[:, : longest + step], position_ids=position[:, here],
                past_key_values=cache, use_cache=True, **only_last,
            ).logits[:, -1].float()  # fmt: skip
            token = _draw(logits, temperature, chance)
            written[live, step] = torch.where(going, token, -1)
            going = going & ~torch.isin(token, ends)
            tokens = token[:, None]
            if watch.step(rows, len(live), step):
                break
            if step % COMPACT_EVERY == COMPACT_EVERY - 1 and float(going.float().mean()) < 0.7:
                kept = going.nonzero()[:, 0]
                if not len(kept):
                    break
                live, going, tokens, mask, position = (x[kept] for x in (live, going, tokens, mask, position))
                cache.select(kept)
    return written


def _draw(logits: Tensor, temperature: float, chance: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    race = torch.empty_like(logits).exponential_(generator=chance)
    return ((logits / temperature).softmax(-1) / race).argmax(-1)


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    """Up to and with the first end-of-sequence token."""
    tokens = tokens[: tokens.index(-1)] if -1 in tokens else tokens
    cut = next((i for i, t in enumerate(tokens) if t in ends), len(tokens) - 1)
    return tokens[: cut + 1]


def _grouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention of one token per row, the queries that share a key as rows of one product: keys are read once.

    transformers repeats the keys for every query head instead, which is most of the traffic of a large batch.
    """
    rows, heads, width, size = query.shape
    shared = key.shape[1]
    if width > 1 or heads == shared:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]
    mask = None if attention_mask is None else attention_mask.expand(-1, -1, heads // shared, -1)
    found = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, shared, heads // shared, size), key, value, attn_mask=mask, scale=options.get("scaling")
    )
    return found.reshape(rows, heads, 1, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, _grouped)
AttentionMaskInterface.register(GROUPED, sdpa_mask)


@contextmanager
def _grouped_attention(model: PreTrainedModel) -> Iterator[None]:
    """Only where the model uses torch's attention: another choice is somebody's wish."""
    before = model.config._attn_implementation
    if before != "sdpa":
        yield
        return
    model.set_attn_implementation(GROUPED)
    try:
        yield
    finally:
        model.set_attn_implementation(before)

"""A target as a teacher: its hidden states, its probabilities on a few tokens, and text it writes itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from outrider.errors import BadOption
from outrider.models.huggingface import HuggingFaceModel


def fingerprint(model: HuggingFaceModel) -> str:
    """A short name for these very weights, whatever directory they lie in: heads fit one target only."""
    sample = model.embedding[:256].detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
    return hashlib.sha256(sample.view(torch.int16).numpy().tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Reading:
    """What a target makes of a text: its logits after every token, and the states they came from."""

    logits: Tensor  # [B, T, V], as the model itself gives them: softcaps and biases included
    hidden: Tensor | None  # [B, T, size]; None where the target shows none

    def likeliest(self) -> Tensor:
        """The target's own choice among all tokens after each position -> [B, T]."""
        return self.logits.argmax(-1)

    def probabilities(self, tokens: Tensor, chunk: int = 8192) -> Tensor:
        """p of the chosen tokens [N] after each position -> [B, T, N]; the vocabulary is normalised whole."""
        flat = self.logits.flatten(0, 1)
        parts = []
        for piece in torch.split(flat, chunk):
            logits = piece.float()
            parts.append((logits[:, tokens] - logits.logsumexp(-1, keepdim=True)).exp())
        return torch.cat(parts).reshape(*self.logits.shape[:-1], len(tokens))


class Teacher:
    """Runs a target over finished text and answers what a student asks."""

    def __init__(self, model: HuggingFaceModel) -> None:
        self.model, self.device = model, model.device

    @torch.no_grad()
    def read(self, tokens: Tensor, source: Tensor | None = None) -> Reading:
        """Over tokens [B, T]; ``source`` [B, S] feeds an encoder. Negative numbers are padding at the end."""
        given = {"input_ids": tokens.clamp(min=0), "use_cache": False}
        if self.model.encoder_decoder:
            if source is None:
                raise BadOption("an encoder-decoder target needs sources in its training data")
            present = (source >= 0).long()
            given = {
                "input_ids": source.clamp(min=0), "attention_mask": present, "decoder_input_ids": given["input_ids"],
                "use_cache": False,
            }  # fmt: skip
        logits = self.model.model(**given).logits
        return Reading(logits, self.model.seen)


def user_turn_opener(tokenizer: PreTrainedTokenizerBase) -> str:
    """What stands before a user's words: let the target go on from there and it writes a user's words itself."""
    if not getattr(tokenizer, "chat_template", None):
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
) -> Iterator[tuple[Sequence[int], list[int]]]:
    """Answers to prompts by transformers' own generate, many at a time: (prompt, answer) pairs.

    Batches hold prompts of similar length; which prompt is in which batch, and the seed of each batch, follow from
    the arguments alone, so a run can be repeated.
    """
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise BadOption(
            "the tokenizer has neither a pad nor an eos token: give text files with --data instead of --self"
        )
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), batch):
        chosen = [_fitting(prompts[i], model) for i in order[start : start + batch]]
        longest = max(len(p) for p in chosen)
        used = 1 if model.encoder_decoder else longest
        room = new_tokens if model.max_length is None else model.max_length - used
        ids = torch.full((len(chosen), longest), pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(chosen):
            # A decoder goes on from the end of its prompt; an encoder counts positions from the beginning.
            place = slice(0, len(prompt)) if model.encoder_decoder else slice(longest - len(prompt), longest)
            ids[row, place] = torch.tensor(list(prompt))
            mask[row, place] = 1
        torch.manual_seed(seed * 1_000_003 + start)
        sampled = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
        )
        result = model.model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=min(new_tokens, room),
            pad_token_id=pad,
            num_beams=1,  # some translators ask for beams, which no draft is made for
            **sampled,
        )
        for prompt, row in zip(chosen, result[:, used:].tolist(), strict=True):
            yield prompt, _until_end(row, model)


def _fitting(prompt: Sequence[int], model: HuggingFaceModel) -> Sequence[int]:
    """No more than the model knows positions for: a source's beginning, or the end of what is to be gone on from."""
    limit = model.max_length
    if limit is None:
        return prompt
    return prompt[:limit] if model.encoder_decoder else prompt[-max(1, limit // 2) :]


def _until_end(tokens: list[int], model: HuggingFaceModel) -> list[int]:
    """Up to and with the first end-of-sequence token."""
    ends = model.model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    cut = next((i for i, t in enumerate(tokens) if t in ends), len(tokens) - 1)
    return tokens[: cut + 1]

"""A target as a teacher: its hidden states, its probabilities on a few tokens, and text it writes itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from outrider.errors import BadOption, require
from outrider.models.huggingface import HuggingFaceModel


def fingerprint(model: HuggingFaceModel) -> str:
    """A short name for these very weights, whatever directory they lie in: heads fit one target only."""
    sample = model.embedding[:256].detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
    return hashlib.sha256(sample.view(torch.int16).numpy().tobytes()).hexdigest()[:16]


class Teacher:
    """Runs a target over finished text and answers what a student asks."""

    def __init__(self, model: HuggingFaceModel) -> None:
        require(
            model.hidden_size is not None, "this target shows no hidden states: only --kind model can learn from it"
        )
        self.model, self.device = model, model.device
        self.embedding, self.unembedding = model.embedding, model.unembedding

    @torch.no_grad()
    def hidden(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """Last hidden states over tokens [B, T] -> [B, T, size]; ``source`` [B, S] feeds an encoder."""
        if self.model.encoder_decoder:
            require(source is not None, "an encoder-decoder target needs sources in its training data")
            mask = source != self.model.model.config.pad_token_id
            _, hidden = self.model.run(input_ids=source, attention_mask=mask.long(), decoder_input_ids=tokens)
        else:
            _, hidden = self.model.run(input_ids=tokens, use_cache=False)
        assert hidden is not None
        return hidden

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer on hidden states [..., size] -> [..., V], in float32."""
        return self.model.model.get_output_embeddings()(hidden).float()  # type: ignore[no-any-return]

    @torch.no_grad()
    def likeliest(self, hidden: Tensor, chunk: int = 8192) -> Tensor:
        """The target's own choice among all tokens after each state [..., size] -> [...]."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        return torch.cat([self.logits(piece).argmax(-1) for piece in torch.split(flat, chunk)]).reshape(
            hidden.shape[:-1]
        )

    @torch.no_grad()
    def probabilities(self, hidden: Tensor, tokens: Tensor, chunk: int = 8192) -> Tensor:
        """p of the chosen tokens [N] after each state [..., size] -> [..., N]; the vocabulary is normalised whole."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        parts = []
        for piece in torch.split(flat, chunk):
            logits = self.logits(piece)
            parts.append((logits[:, tokens] - logits.logsumexp(-1, keepdim=True)).exp())
        return torch.cat(parts).reshape(*hidden.shape[:-1], len(tokens))


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
        chosen = [prompts[i] for i in order[start : start + batch]]
        longest = max(len(p) for p in chosen)
        ids = torch.full((len(chosen), longest), pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(chosen):
            ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, longest - len(prompt) :] = 1
        torch.manual_seed(seed * 1_000_003 + start)
        sampled = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
        )
        result = model.model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=new_tokens,
            pad_token_id=pad,
            **sampled,
        )
        first = 1 if model.encoder_decoder else longest
        for prompt, row in zip(chosen, result[:, first:].tolist(), strict=True):
            yield prompt, _until_end(row, model)


def _until_end(tokens: list[int], model: HuggingFaceModel) -> list[int]:
    """Up to and with the first end-of-sequence token."""
    ends = model.model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    cut = next((i for i, t in enumerate(tokens) if t in ends), len(tokens) - 1)
    return tokens[: cut + 1]

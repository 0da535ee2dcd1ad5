"""What is measured: Table 3's acceptance rates on texts the target writes itself, n-gram tables, held-out loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.core.protocols import Session, Shape
from outrider.drafters import ngram
from outrider.drafters.ngram import Ngram, NgramTable
from outrider.errors import require
from pretrain.text import IGNORED, Batch

FOLLOWERS = 32
"""Followers a bigram table keeps per token, as NgramTable.fit does."""


@dataclass(frozen=True)
class Written:
    """Texts a model wrote: what was given before position ``first`` of tokens, and the sources if there are any."""

    tokens: Tensor  # [B, L]
    first: int
    source: Tensor | None = None  # [B, S]
    present: Tensor | None = None  # [B, S]: 1 where the source is no padding

    def inputs(self, rows: slice) -> dict[str, Tensor]:
        """To read the texts again in one run."""
        tokens = self.tokens[rows, :-1]
        if self.source is None or self.present is None:
            return {"input_ids": tokens}
        return {
            "input_ids": self.source[rows],
            "attention_mask": self.present[rows],
            "decoder_input_ids": tokens,
        }

    def counts(self, end: int) -> Tensor:
        """[B, L - first]: whether a token was really written, which means up to and with the first end."""
        ends = (self.tokens[:, self.first :] == end).long()
        return (ends.cumsum(1) - ends) == 0


@torch.no_grad()
def write(
    model: Any, given: Written, new_tokens: int, temperature: float, end: int, padding: int, seed: int
) -> Written:
    """Go on from what is given, all rows at a time, until all have ended or have their new tokens."""
    device = given.tokens.device
    random = torch.Generator(device).manual_seed(seed)
    fixed: dict[str, Any] = {}
    name = "input_ids"
    if given.source is not None:
        read = model.get_encoder()(input_ids=given.source, attention_mask=given.present)
        fixed, name = {"encoder_outputs": read, "attention_mask": given.present}, "decoder_input_ids"
    tokens = feed = given.tokens
    done = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    cache = None
    for count in range(1, new_tokens + 1):
        output = model(**{name: feed}, past_key_values=cache, use_cache=True, **fixed)
        logits, cache = output.logits[:, -1].float(), output.past_key_values
        if temperature > 0:
            race = torch.empty_like(logits).exponential_(generator=random)
            logits = (logits / temperature).softmax(-1) / race
        feed = torch.where(done, padding, logits.argmax(-1))[:, None]
        tokens = torch.cat([tokens, feed], 1)
        done = done | (feed[:, 0] == end)
        if count % 8 == 0 and bool(done.all()):
            break
    return replace(given, tokens=tokens)


def count_tables(stream: Tensor, vocab_size: int, never: int | None = None) -> tuple[NgramTable, NgramTable]:
    """Unigram and bigram table of a stream of tokens [N]; ``never`` is a token that only ever begins a text.

    Gives what NgramTable.fit gives for one long text, by a dense count: seconds for any length, on any device.
    """
    unigram = torch.bincount(stream, minlength=vocab_size).float()
    if never is not None:
        unigram[never] = 0
    pairs = torch.bincount(stream[:-1] * vocab_size + stream[1:], minlength=vocab_size**2)
    counts, followers = pairs.view(vocab_size, vocab_size).float().topk(min(FOLLOWERS, vocab_size), 1)
    seen = (counts[:, 0] > 0).nonzero()[:, 0]
    keys, order = ngram._fold([seen], seen).sort()
    seen = seen[order]
    unigram, keys = unigram.cpu(), keys.cpu()
    table = (keys,), (followers[seen].int().cpu().contiguous(),), (counts[seen].cpu().contiguous(),)
    return NgramTable(vocab_size, unigram, (), (), ()), NgramTable(vocab_size, unigram, *table)


def table_weights(table: NgramTable, last: Tensor) -> Tensor:
    """What a table's drafter weighs the next token by, after each of the tokens last [N] -> [N, V]."""
    target = cast(Session, SimpleNamespace(vocab_size=table.vocab_size, device=last.device))
    session: Any = Ngram(table).start(len(last), Shape(capacity=1, width=1), target)
    session.context.tokens[:, 0] = last
    return cast(Tensor, session.weights(last.new_zeros((len(last), 0))))


@dataclass(frozen=True)
class Rate:
    """An acceptance rate with its standard error, texts taken as independent of each other."""

    alpha: float
    error: float
    tokens: int


@torch.no_grad()
def acceptance(
    target: Any, drafts: Mapping[str, Any], texts: Sequence[Written], temperature: int, end: int
) -> dict[str, Rate]:
    """alpha = E[sum-min(p, q)] of each draft (a model or an NgramTable) over the tokens of the target's own texts.

    At temperature 0, p and q are point masses on their likeliest token.
    """
    require(temperature in (0, 1), f"temperature must be 0 or 1, got {temperature}")
    sums: dict[str, list[Tensor]] = {name: [] for name in drafts}
    numbers: list[Tensor] = []
    for text in texts:
        vocab = target.get_output_embeddings().weight.shape[0]
        step = max(1, (1 << 27) // (text.tokens.shape[1] * vocab))
        for start in range(0, len(text.tokens), step):
            rows = slice(start, start + step)
            counts = text.counts(end)[rows]
            p = target(**text.inputs(rows), use_cache=False).logits[:, text.first - 1 :].float()
            before = text.tokens[rows, text.first - 1 : -1]
            numbers.append(counts.sum(1))
            for name, draft in drafts.items():
                if isinstance(draft, NgramTable):
                    q = table_weights(draft, before.flatten()).view(*before.shape, -1)
                    q = q / q.sum(-1, keepdim=True)
                else:
                    q = draft(**text.inputs(rows), use_cache=False).logits[:, text.first - 1 :].float().softmax(-1)
                same = p.argmax(-1) == q.argmax(-1)
                shared = same.float() if temperature == 0 else torch.minimum(p.softmax(-1), q).sum(-1)
                sums[name].append((shared * counts).sum(1))
    number = torch.cat(numbers).double()
    rates = {}
    for name, parts in sums.items():
        each = torch.cat(parts).double()
        alpha = each.sum() / number.sum()
        error = (each - alpha * number).square().sum().sqrt() / number.sum()
        rates[name] = Rate(float(alpha), float(error), int(number.sum()))
    return rates


@torch.no_grad()
def held_out_loss(model: Any, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood per token, in nats."""
    total, tokens = 0.0, 0
    for batch in batches:
        logits = model(**batch.inputs, use_cache=False).logits.flatten(0, 1).float()
        total += float(F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"))
        tokens += batch.tokens
    require(tokens > 0, "the held-out data is empty: nothing to measure on")
    return total / tokens

"""From logits to probabilities, and from probabilities to a token: the only two routes there are.

Both models go through ``standardise`` with the same options, and every token is drawn by ``draw``: the
distribution a draft reports is the distribution it was drawn from. Argmax is a one-hot distribution, not a
second path (Leviathan et al. 2023, section 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.core import host_sync
from outrider.core.context import Context
from outrider.core.draft import Choices
from outrider.core.numpy_ops import largest, largest_finite
from outrider.core.processors import ByRow, OfRows, Processor, of_row, process
from outrider.core.top_p import nucleus
from outrider.errors import BadOption, require

COLDEST = 1e-6
"""Logits are divided by temperature and penalty: by less than this they may no longer be finite numbers."""


class LogitBias(dict[int, float]):
    """What is added to which logits, and those numbers on the devices they were used on.

    They are sent once: a step that copies from the host cannot be captured (decoding/capture/graphs.py). And they live
    as long as the options do: a captured step reads them where they are, and whoever keeps the graph keeps its options.
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        super().__init__(bias)
        self._sent: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def on(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Token ids and what is added to them, [N] each."""
        if (dtype, device) not in self._sent:
            tokens = torch.tensor(list(self), dtype=torch.int64, device=device)
            self._sent[dtype, device] = tokens, torch.tensor(list(self.values()), dtype=dtype, device=device)
        return self._sent[dtype, device]


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    frequency_penalty: float = 0.0  # over the output, as in the OpenAI API
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    processors: tuple[Processor | ByRow, ...] = ()
    ends: frozenset[int] = frozenset()  # end tokens: no processor is asked behind one that was written or guessed
    min_tokens: int = 0  # new tokens before which none of ``withheld`` may come
    withheld: Mapping[int, float] = field(default_factory=dict)  # token: what is added to its logit until then

    def __post_init__(self) -> None:
        for name in ("logit_bias", "withheld"):
            given = getattr(self, name)
            if not isinstance(given, LogitBias):  # one that is stays: what was made of these options shares it
                object.__setattr__(self, name, LogitBias(given))

        def number(name: str, low: float, high: float = float("inf"), open_low: bool = False) -> None:
            value = getattr(self, name)
            require(not isinstance(value, bool), f"{name} must be a number, got {value!r}")
            try:
                inside = (low < value if open_low else low <= value) and value <= high
            except TypeError:
                raise BadOption(f"{name} must be a number, got {value!r}") from None
            rule = f"{'above' if open_low else 'at least'} {low:g}" + (f" and at most {high:g}" if high < 1e9 else "")
            require(inside, f"{name} must be {rule}, got {value!r}")

        number("temperature", 0)
        require(self.temperature < 1e6, f"temperature must be below 1e6, got {self.temperature!r}")
        rule = f"temperature must be 0, which is greedy, or at least {COLDEST:g}, got {self.temperature!r}; use 0"
        require(self.temperature == 0 or self.temperature >= COLDEST, rule)
        if self.top_k is not None:
            require(
                isinstance(self.top_k, int) and not isinstance(self.top_k, bool),
                f"top_k must be a whole number or None for all tokens, got {self.top_k!r}",
            )
            number("top_k", 1)
        number("top_p", 0, 1, open_low=True)
        number("min_p", 0, 1)
        number("repetition_penalty", 0, 1e6, open_low=True)
        rule = f"repetition_penalty must be at least {COLDEST:g}, got {self.repetition_penalty!r}; 1 is none"
        require(self.repetition_penalty >= COLDEST, rule)
        number("frequency_penalty", -2, 2)
        number("presence_penalty", -2, 2)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def lowers(self) -> bool:
        """Whether penalties, bias and processors can only lower a log-probability, or keep it at 0 at most."""
        raised = self.frequency_penalty < 0 or self.presence_penalty < 0 or any(v > 0 for v in self.logit_bias.values())
        return not raised and not self.processors

    @property
    def adjusts(self) -> bool:
        """Whether logits depend on more than the model: on the tokens before, or on what was asked for."""
        return bool(self.penalised or self.logit_bias or self.min_tokens or self.processors)

    @property
    def filters(self) -> bool:
        """Whether unlikely tokens are cut off."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    def of_row(self, row: int) -> Sampling:
        """The options of one row, whatever place it is given; where rows have their own, those."""
        return replace(self, processors=tuple(of_row(p, row) for p in self.processors)) if self.processors else self

    def behind(self, q: Tensor) -> Sampling:
        """The options behind tokens drawn from q [B, V]: where q was no distribution, processors are not asked."""
        return self.only(q.amax(-1) > 0) if self.processors else self  # NaN is not above zero

    def only(self, rows: Tensor) -> Sampling:
        """The same options with processors for some rows [B] only."""
        if not self.processors or bool(rows.all()):
            return self
        return replace(self, processors=tuple(OfRows(p, rows.tolist()) for p in self.processors))


@dataclass(frozen=True)
class SamplingByRow(Sampling):
    """The options of a batch whose rows have different ones. Rows of no group (empty slots) get zeros."""

    groups: tuple[tuple[Sampling, tuple[int, ...]], ...] = ()  # options, and the rows that share them

    @staticmethod
    def of(groups: Sequence[tuple[Sampling, tuple[int, ...]]]) -> SamplingByRow:
        """``temperature`` is the highest: what a drafter that knows of one temperature goes by."""
        return SamplingByRow(
            temperature=max(options.temperature for options, _ in groups),
            processors=tuple(one for options, _ in groups for one in options.processors),
            groups=tuple(groups),
        )

    @property
    def greedy(self) -> bool:
        return False  # rows that are greedy may differ in other options: all go through ``standardise``

    @property
    def adjusts(self) -> bool:
        return any(options.adjusts for options, _ in self.groups)

    @property
    def filters(self) -> bool:
        return any(options.filters for options, _ in self.groups)

    def only(self, rows: Tensor) -> Sampling:
        if not self.processors or bool(rows.all()):
            return self
        return replace(self, groups=tuple((options.only(rows[list(own)]), own) for options, own in self.groups))

    def of_row(self, row: int) -> Sampling:
        """An empty slot's are anybody's."""
        options, own = next((group for group in self.groups if row in group[1]), self.groups[0])
        return options.of_row(own.index(row) if row in own else 0)

    def greedy_rows(self, like: Tensor) -> Tensor:
        """[B] bool: the rows at temperature 0, for a tensor [B, ...]."""
        found = torch.zeros(like.shape[0], dtype=torch.bool, device=like.device)
        found[[row for options, own in self.groups if options.greedy for row in own]] = True
        return found

    def standardised(self, logits: Tensor, context: Context, tail: Tensor) -> Tensor:
        """``standardise`` of every group with its own options."""
        table = torch.zeros(logits.shape, dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
        for options, own in self.groups:
            rows = torch.tensor(own, device=logits.device)
            part = context.of_rows(rows) if options.adjusts else context
            table[rows] = standardise(logits[rows], options, part, tail[rows])
        return table


def standardise(logits: Tensor, sampling: Sampling, context: Context, tail: Tensor) -> Tensor:
    """Logits [B, K, V] after the context and each guess of ``tail`` [B, >= K-1] -> probabilities [B, K, V].

    Penalties and processors see exactly the prefix each position stands behind, guesses included.
    """
    if isinstance(sampling, SamplingByRow):
        return sampling.standardised(logits, context, tail)
    if sampling.greedy:
        best = choices(logits, sampling, context, tail)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        table = torch.zeros(logits.shape, dtype=dtype, device=logits.device)
        return table.scatter_(-1, best.tokens[..., None], best.weight[..., None].to(dtype))
    logits = _adjust(logits.to(torch.promote_types(logits.dtype, torch.float32)), sampling, context, tail)
    logits = logits if sampling.temperature == 1 else logits / sampling.temperature
    return _filter(logits, sampling).softmax(-1)


def choices(logits: Tensor, sampling: Sampling, context: Context, tail: Tensor) -> Choices:
    """``standardise`` at temperature 0, without its tables."""
    logits = _adjust(logits.to(torch.promote_types(logits.dtype, torch.float32)), sampling, context, tail)
    if host_sync.free(logits.device):  # logits that leave no choice must not pass for one: NaN is found afterwards
        return Choices(*largest_finite(logits))
    best = largest(logits)
    value = logits.gather(-1, best[..., None])[..., 0]
    return Choices(best, value - value + 1)  # infinity less itself is not a number


def log_standardise(logits: Tensor, sampling: Sampling, context: Context, tail: Tensor) -> Tensor:
    """Logits [B, K, V] -> what beam search adds up, float32 [B, K, V]: log-probabilities, then penalties and the rest.

    In transformers' order: a processor sees log-probabilities here, and what it changes is not normalised again.
    """
    return _adjust(logits.to(torch.float32).log_softmax(-1), sampling, context, tail)


def draw(weights: Tensor, race: Tensor) -> Tensor:
    """One token per distribution, [..., V] -> [...]: the first to arrive when x arrives at race / weight.

    An exponential race picks x with probability proportional to its weight and needs no normalising. Two
    distributions that overlap by s, raced with the same noise, agree with probability s / (2 - s) at least and
    s at most: that is Gumbel coupling.
    """
    return largest(weights / race)


def _adjust(logits: Tensor, sampling: Sampling, context: Context, tail: Tensor) -> Tensor:
    """Penalties, bias and processors, each behind the prefix a position stands behind."""
    tail, given = tail[:, : logits.shape[1] - 1], logits
    if sampling.penalised:
        logits = _penalise(logits, sampling, context, tail)
    if sampling.logit_bias:
        assert isinstance(sampling.logit_bias, LogitBias)
        logits = _bias(logits, sampling.logit_bias)
    if sampling.min_tokens:
        assert isinstance(sampling.withheld, LogitBias)
        logits = _withhold(logits, sampling.withheld, sampling.min_tokens, context)
    if sampling.processors:
        logits = process(logits, sampling.processors, sampling.ends, context, tail)
        # A processor may have made numbers of NaN: what the model did not say decides nothing.
        logits = logits.masked_fill(~given.amax(-1, keepdim=True).isfinite(), torch.nan)
    return logits


def _penalise(logits: Tensor, sampling: Sampling, context: Context, tail: Tensor) -> Tensor:
    place = torch.arange(context.capacity, device=logits.device)  # [C]
    known = place < context.lengths[:, None]  # [B, C]
    guesses = torch.zeros((*tail.shape, logits.shape[-1]), dtype=torch.int64, device=logits.device)  # [B, K-1, V]
    guesses = guesses.scatter_(-1, tail[..., None], 1).cumsum(1)
    guesses = torch.nn.functional.pad(guesses, (0, 0, 1, 0))  # [B, K, V]: nothing guessed before the first

    def counts(where: Tensor) -> Tensor:
        seen = torch.zeros((logits.shape[0], logits.shape[-1]), dtype=torch.int64, device=logits.device)
        seen.scatter_add_(1, context.tokens, where.to(torch.int64))
        return seen[:, None] + guesses  # [B, K, V]

    if sampling.repetition_penalty != 1:
        penalty = sampling.repetition_penalty
        softened = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(counts(known) > 0, softened, logits)
    if sampling.frequency_penalty or sampling.presence_penalty:
        written = counts(known & (place >= context.prompt_lengths[:, None]))
        logits = logits - sampling.frequency_penalty * written - sampling.presence_penalty * (written > 0)
    return logits


def _bias(logits: Tensor, bias: LogitBias) -> Tensor:
    outside = [token for token in bias if not 0 <= token < logits.shape[-1]]
    require(not outside, f"logit_bias names token {outside}, the vocabulary has {logits.shape[-1]} tokens")
    index, values = bias.on(logits.dtype, logits.device)
    return logits.index_add(-1, index, values.expand(*logits.shape[:-1], -1))


def _withhold(logits: Tensor, withheld: LogitBias, least: int, context: Context) -> Tensor:
    """Change the logits of withheld tokens where a position has fewer than ``least`` new tokens before it."""
    written = context.positions(logits.shape[1]) - context.prompt_lengths[:, None]  # [B, K]
    index, values = withheld.on(logits.dtype, logits.device)
    own = logits.index_select(-1, index)  # [B, K, N]
    return logits.index_copy(-1, index, torch.where((written < least)[..., None], own + values, own))


def _filter(logits: Tensor, sampling: Sampling) -> Tensor:
    """top-k, then top-p, then min-p, in transformers' order; what is cut gets probability zero."""
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        cut = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < cut, -torch.inf)
    if sampling.top_p < 1:
        logits = nucleus(logits, sampling.top_p)
    if sampling.min_p > 0:
        probs = logits.softmax(-1)
        logits = logits.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), -torch.inf)
    return logits

"""How hypothesis draws worlds: small ones, with the options and drafters that are rarely thought of together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from worlds import (
    Alone,
    Ends,
    Grammar,
    Hostile,
    Lift,
    Model,
    Named,
    NoRepeat,
    Over,
    Own,
    Planned,
    Sampling,
    Spec,
    Strict,
    Toy,
    Two,
    World,
)  # fmt: skip

SEEDS = st.integers(0, 999)
T = TypeVar("T")


def few(*values: T) -> SearchStrategy[T]:
    """The first is the plain one."""
    return st.sampled_from(values)


@st.composite
def samplings(draw: DrawFn, vocab: int) -> Sampling:
    tokens = st.integers(0, vocab - 1)
    bias = st.dictionaries(tokens, few(-inf, 1.0, -2.0, 3.0), max_size=vocab - 1)
    rules = st.one_of(st.builds(NoRepeat, st.integers(1, 3)), st.builds(Grammar, SEEDS), st.builds(Lift, SEEDS))
    return Sampling(
        temperature=draw(few(1.0, 0.0, 0.6, 1.5)),
        top_k=draw(st.one_of(st.none(), st.none(), st.integers(1, vocab))),
        top_p=draw(few(1.0, 1.0, 0.9, 0.6, 0.2)),
        min_p=draw(few(0.0, 0.0, 0.1, 0.4)),
        repetition_penalty=draw(few(1.0, 1.0, 1.4, 0.7)),
        frequency_penalty=draw(few(0.0, 0.0, 0.8, -0.8)),
        presence_penalty=draw(few(0.0, 0.0, 0.6, -0.6)),
        logit_bias=draw(st.one_of(st.just({}), bias)),
        processors=tuple(draw(st.lists(rules, max_size=1))) if draw(few(0, 0, 1)) else (),
    )


@st.composite
def stricts(draw: DrawFn, vocab: int) -> Strict:
    end, *others = draw(st.permutations(range(vocab)))
    return Strict(tuple(others[: draw(st.integers(1, vocab - 1))]), (end,))


def supports(vocab: int) -> SearchStrategy[tuple[int, ...]]:
    return st.one_of(st.just(()), st.lists(st.integers(0, vocab - 1), min_size=1, max_size=2).map(tuple))


def models(vocab: int) -> SearchStrategy[Model]:
    return st.builds(
        Model, SEEDS, distance=few(0.5, 3.0), vocab=few(0, 0, 1, -2), knows=supports(vocab), floor=few(0.0, 0.0, 0.3),
        own=st.one_of(st.none(), st.none(), st.builds(Sampling, temperature=few(1.0, 0.5), top_k=st.integers(1, 3))),
    )  # fmt: skip


def hostile(vocab: int) -> SearchStrategy[Hostile]:
    flag = st.booleans()
    return st.builds(
        Hostile, SEEDS, sharpness=few(2.0, 0.5, 8.0), support=supports(vocab), told=flag, points=flag,
        broken=st.sampled_from(("", "nan", "zero", "inf")), broken_share=few(0.5, 1.0), stops=flag, garbage=flag,
        outside=flag, narrow=few(99, 1), moods=few(1, 2), raises=few(0, 0, 2),
    )  # fmt: skip


KINDS = ("hostile", "named", "model", "own", "mixture", "fallback", "cascade", "mixture")
COUPLINGS = ("maximal", "block", "gumbel", "maximal")


@st.composite
def drafters(draw: DrawFn, vocab: int, kinds: Sequence[str]) -> Spec:
    """One drafter, or a composition of two."""
    kind = draw(st.sampled_from(kinds))
    if kind in ("mixture", "fallback"):
        return Two(kind, draw(single(vocab)), draw(single(vocab)), draw(few(0.1, 0.0, 0.5)))
    if kind == "cascade":
        return Over(draw(single(vocab)), draw(models(vocab)), draw(st.integers(1, 3)), draw(st.booleans()))
    return draw(single(vocab, (kind,)))


@st.composite
def single(draw: DrawFn, vocab: int, kinds: Sequence[str] = ("hostile", "named", "model", "own", "hostile")) -> Spec:
    kind = draw(st.sampled_from(kinds))
    if kind == "hostile":
        return draw(hostile(vocab))
    if kind == "named":
        return Named(draw(st.sampled_from(("ngram", "copy", "suffix", "uniform", "none"))))
    if kind == "model":
        return draw(models(vocab))
    inner = draw(
        st.one_of(st.builds(Named, st.sampled_from(("ngram", "suffix", "uniform"))), models(vocab).map(_without_own))
    )
    return Own(inner, draw(few_or_none(0.5, 0.0, 2.0)), draw(few_or_none(1, 2)), draw(few_or_none(0.5)))


def few_or_none(*values: T) -> SearchStrategy[T | None]:
    return st.sampled_from((None, *values))


def _without_own(model: Model) -> Model:
    return Model(model.seed, model.distance, model.vocab, model.knows, model.floor)


@st.composite
def worlds(
    draw: DrawFn,
    new: Sequence[int] = (2, 1, 3, 4),
    beside: Sequence[int] = (0, 1, 3),
    kinds: Sequence[str] = KINDS,
    couplings: Sequence[str] = COUPLINGS,
) -> World:
    """Texts of so many tokens, beside so many others, with these kinds of drafter and coupling."""
    vocab = draw(st.sampled_from((4, 3, 5, 6)))
    tokens = st.integers(0, vocab - 1)
    prompts = st.lists(tokens, min_size=1, max_size=6).map(tuple)
    toy = Toy(
        vocab, draw(few(1, 2)), draw(SEEDS), draw(few(1.0, 2.5)), draw(few((), (), (1,))), draw(few((), (), (), (2,)))
    )  # fmt: skip
    sampling = draw(samplings(vocab))
    ends = Ends(
        draw(few(*new)),
        draw(st.sampled_from(((), (), (0,), (2,)))),
        draw(st.sampled_from(((), (), ("a",), ("bc",), ("cc", "ab")))),
    )
    if draw(few(False, False, False, True)):
        rule = draw(stricts(vocab))
        sampling, ends = replace(sampling, processors=(rule,)), replace(ends, eos=rule.ends)
        prompts = st.lists(st.sampled_from(rule.allowed), min_size=1, max_size=6).map(tuple)
    coupling = draw(st.sampled_from(couplings))
    width = draw(st.sampled_from((3, 5, 4, 2)))
    policies = st.builds(Planned, st.sampled_from(("auto", "gradient", "turns")), few(0.1, 0.0, 0.6, -1.0))
    count = draw(st.sampled_from(beside))
    others = st.builds(Alone, prompts, SEEDS, few(1, *new))
    return World(
        toy, sampling, ends, draw(prompts), draw(drafters(vocab, kinds)), coupling,
        draw(few(1.0, 1.0, 1.0, 0.5)) if coupling == "maximal" else 1.0,
        draw(st.one_of(st.integers(1, width - 1), policies)), width, draw(few(2, 1, 4)),
        tuple(draw(st.lists(others, min_size=count, max_size=count))),
    )  # fmt: skip

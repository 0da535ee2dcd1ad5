"""The same by ``LLM``: prompts of one call are independent, and stop strings are what the text shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import torch
import transformers as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from reference import Ends, Reference
from tokenizers import Tokenizer, models, pre_tokenizers
from worlds import Model, Named, Spec, Toy, build

import outrider
from outrider.core.sampling import Sampling
from outrider.models.hub.loading import Loaded
from outrider.models.toy import ToyModel
from outrider.testing.distribution import same_distribution

FALSE_FAIL = 1e-12
DRAFTERS: tuple[Spec, ...] = (Named("ngram"), Named("suffix"), Named("none"), Model(3))
few_slow = settings(
    suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate, Phase.shrink]
)  # explaining a failure runs it a hundred times more


class Spoken(ToyModel):
    """A toy with what ``LLM`` asks of a model."""

    dtype = torch.float64

    def __init__(self, toy: Toy, eos: int | None = None) -> None:
        self.__dict__ |= toy.build().__dict__
        self.generation_config = tf.GenerationConfig(eos_token_id=eos)


def words(names: Sequence[str], unknown: str | None) -> tf.PreTrainedTokenizerFast:
    known = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=unknown or names[0]))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=known, unk_token=unknown, eos_token="</s>")


def llm(toy: Toy, drafter: Spec, names: Sequence[str] = (), unknown: str | None = "<unk>") -> outrider.LLM:
    names = names or ["<unk>", "</s>", *"abcdef"][: toy.vocab]
    model = Spoken(toy)
    loaded = Loaded("toy", cast(Any, model), words(names, unknown))
    return outrider.LLM(loaded, build(drafter, model), width=4)


TOYS = st.builds(Toy, st.sampled_from((3, 4)), st.just(2), st.integers(0, 999), st.just(1.0))


def check_independent(toy: Toy, drafter: Spec, coupling: str, seeded: bool, calls: int = 250) -> None:
    """Different prompts of one call and one length, two by two: the joint distribution is a product.

    A right sampler fails once in 1/FALSE_FAIL runs.
    """
    pairs = [((0, 1), (1, 0)), ((2, 1), (1, 1)), ((0, 2), (0, 0)), ((2, 2), (2, 0))]
    prompts = [list(prompt) for pair in pairs for prompt in pair]
    ready, seen = llm(toy, drafter), Counter[tuple[int, int, int]]()
    for call in range(calls):
        seed = {"seed": call} if seeded else {}
        outputs = ready.generate(prompts, temperature=1.0, max_new_tokens=1, gamma=2, coupling=coupling, eos=(), **seed)
        first = [output.tokens[0] for output in outputs]
        seen.update((i, first[2 * i], first[2 * i + 1]) for i in range(len(pairs)))
    known = Reference(toy.build().table.tolist(), toy.order, Sampling(1.0), Ends(1))
    distributions = [
        [torch.tensor(known.distribution(prompt, ()), dtype=torch.float64) for prompt in pair] for pair in pairs
    ]
    distribution = torch.stack([one[:, None] * two[None] for one, two in distributions]) / len(pairs)
    counts = torch.zeros(distribution.shape)
    for place, count in seen.items():
        counts[place] = count
    tested = same_distribution(counts, distribution, false_fail_rate=FALSE_FAIL)
    assert tested.statistic <= tested.threshold, (
        f"texts of one call depend on each other: {tested.statistic:.0f} above {tested.threshold:.0f}; "
        f"check_independent({toy}, {drafter}, {coupling!r}, {seeded})"
    )


@settings(few_slow, max_examples=4)
@given(TOYS, st.sampled_from(DRAFTERS), st.sampled_from(("maximal", "gumbel", "block")), st.booleans())
def test_prompts_of_one_call_are_independent(toy: Toy, drafter: Spec, coupling: str, seeded: bool) -> None:
    """Eight prompts of equal length shared their noise and gave two different answers."""
    check_independent(toy, drafter, coupling, seeded)


@settings(few_slow, max_examples=30)
@given(
    TOYS, st.sampled_from(DRAFTERS), st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=3),
    st.sampled_from(("maximal", "gumbel", "block")),
)  # fmt: skip
def test_a_prompt_alone_gives_what_it_gives_beside_others(
    toy: Toy, drafter: Spec, others: list[list[int]], coupling: str
) -> None:
    """Catches a seed that depends on a prompt's place, or on how many others there are."""
    own, ready = [0, 1, 2, 1], llm(toy, drafter)
    how = {"temperature": 1.0, "max_new_tokens": 6, "seed": 7, "coupling": coupling, "gamma": 2, "eos": ()}
    (alone,) = ready.generate([own], **how)
    for place in range(len(others) + 1):
        beside = [other for other in others if other != own]
        beside.insert(min(place, len(beside)), own)
        assert ready.generate(beside, **how)[beside.index(own)].tokens == alone.tokens


NAMES = ["<unk>", "</s>", "a", "b", "\\n", "ab"]
STOPS = ["\n\n", "\n", "a", "b", "ab", "a b", "<unk>", "</s>", "<unk", "c", "zebra"]


def check_stops(toy: Toy, drafter: Spec, stop: Sequence[str], unknown: str | None, coupling: str = "gumbel") -> None:
    """A text ends with the first token that completes a stop string, or that is one and special."""
    names = [name.replace("\\n", "\n") for name in NAMES]
    ready = llm(toy, drafter, names, unknown)
    special = {names.index(name) for name in ("<unk>", "</s>") if name == unknown or name == "</s>"}
    how = {"temperature": 1.0, "max_new_tokens": 8, "coupling": coupling, "gamma": 2, "eos": (), "top_k": 5}
    for seed in range(6):
        whole = ready.generate([4, 2], seed=seed, **how).tokens

        def ended(tokens: Sequence[int]) -> bool:
            text = ready.decode(list(tokens))
            return any(s in text for s in stop) or (tokens[-1] in special and names[tokens[-1]] in stop)

        length = next((n for n in range(1, len(whole) + 1) if ended(whole[:n])), len(whole))
        found = ready.generate([4, 2], seed=seed, stop=list(stop), **how).tokens
        assert found == whole[:length], (
            f"stop={list(stop)!r} ended {whole} as {found}, not as {whole[:length]}; "
            f"check_stops({toy}, {drafter}, {list(stop)!r}, {unknown!r})"
        )


@settings(few_slow, max_examples=20)
@given(
    st.builds(Toy, st.just(len(NAMES)), st.just(1), st.integers(0, 999), st.just(0.5)),
    st.sampled_from(DRAFTERS),
    st.lists(st.sampled_from(STOPS), min_size=1, max_size=2),
    st.sampled_from(("<unk>", None)),
)
def test_stop_strings(toy: Toy, drafter: Spec, stop: list[str], unknown: str | None) -> None:
    """A stop string that the tokenizer has no token for made the unknown token an end of every text."""
    check_stops(toy, drafter, stop, unknown)

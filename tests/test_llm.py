"""The Python API on small real model directories: load, generate, stream, chat."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import library
import outrider
from outrider.errors import BadOption, NumericalError, PromptError
from outrider.options import Options
from outrider.trace import Stats

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    library.save_llama(root / "target")
    library.save_llama(root / "draft", seed=1, rows=library.ROWS - 24)
    library.save_llama(root / "chatty", chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}")
    library.save_t5(root / "t5")
    return root


@pytest.fixture(scope="module")
def llm(folders: Path) -> outrider.LLM:
    return outrider.load(str(folders / "target"), draft="auto")


@pytest.fixture(scope="module")
def plain(llm: outrider.LLM) -> outrider.LLM:
    return outrider.LLM(llm.target, outrider.Nothing())


def by_transformers(folder: Path, prompt: str, **options: Any) -> list[int]:
    words = tf.AutoTokenizer.from_pretrained(folder)
    kind = tf.AutoModelForSeq2SeqLM if "t5" in folder.name else tf.AutoModelForCausalLM
    model = kind.from_pretrained(folder)
    ids = words(prompt, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**ids, do_sample=False, **options)[0]
    return output[1 if "t5" in folder.name else ids["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("draft", ["auto", "copy", "ngram", "suffix", "uniform", "none", None, "draft"])
def test_greedy_is_transformers_own(folders: Path, draft: str | None) -> None:
    """Catches an API that tokenizes, stops or decodes in another way than the model's own library."""
    llm = outrider.load(str(folders / "target"), str(folders / "draft") if draft == "draft" else draft)
    output = llm.generate(PROMPT, max_new_tokens=40)
    expected = by_transformers(folders / "target", PROMPT, max_new_tokens=40)
    assert output.tokens == expected
    assert output.text == llm.tokenizer.decode(expected, skip_special_tokens=True)
    assert output.prompt_tokens == len(llm.tokenizer.encode(PROMPT))
    assert output.stats.drafter_error is None


def test_encoder_decoder_is_transformers_own(folders: Path) -> None:
    """Catches an encoder-decoder model continued instead of asked; its prompt is the source."""
    llm = outrider.load(str(folders / "t5"), draft="auto")
    output = llm.generate(PROMPT, max_new_tokens=30)
    assert output.tokens == by_transformers(folders / "t5", PROMPT, max_new_tokens=30)
    assert output.prompt_tokens == len(llm.tokenizer.encode(PROMPT))


def test_ways_to_give_a_prompt(llm: outrider.LLM) -> None:
    """Catches a list of ids taken for a list of prompts, or the other way round."""
    ids = llm.tokenizer.encode(PROMPT)
    text = llm.generate(PROMPT, max_new_tokens=8).text
    for same in (ids, tuple(ids), torch.tensor(ids), np.array(ids)):
        assert llm.generate(same, max_new_tokens=8).text == text
    for several in ([PROMPT, PROMPT], [ids, PROMPT], torch.tensor([ids, ids]), [torch.tensor(ids)]):
        outputs = llm.generate(several, max_new_tokens=8)
        assert isinstance(outputs, list)
        assert {o.text for o in outputs} == {text}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 1.0, "seed": 4, "coupling": "gumbel", "eos": ()},
        {"stop": ["b", "\n"]},
        {"temperature": 0.8, "seed": 9, "stop": "e", "top_k": 40},
    ],
    ids=str,
)
def test_stream_is_generate(llm: outrider.LLM, options: dict[str, Any]) -> None:
    """Catches a stream that loses, repeats or takes back text, with stop strings and broken characters in it."""
    prompts = [PROMPT, "so", "hello there the"]
    outputs = llm.generate(prompts, max_new_tokens=30, **options)
    texts, tokens, ends = ["", "", ""], [[], [], []], [None, None, None]
    for chunk in llm.stream(prompts, max_new_tokens=30, **options):
        assert ends[chunk.index] is None, "nothing comes after the end"
        texts[chunk.index] += chunk.text
        tokens[chunk.index] += chunk.tokens  # type: ignore[arg-type]
        ends[chunk.index] = chunk.finish_reason  # type: ignore[call-overload]
    assert texts == [o.text for o in outputs]
    assert tokens == [o.tokens for o in outputs]
    assert ends == [o.finish_reason for o in outputs]


def test_speculation_does_not_show(llm: outrider.LLM, plain: outrider.LLM) -> None:
    """Catches text that depends on the drafter or gamma, greedy or with Gumbel coupling."""
    for options in ({}, {"temperature": 1.0, "seed": 5, "coupling": "gumbel", "repetition_penalty": 1.2}):
        expected = plain.generate(PROMPT, max_new_tokens=24, **options).tokens
        for gamma in (None, 1, "auto", "gradient", outrider.Auto(costs=0.3)):
            assert llm.generate(PROMPT, max_new_tokens=24, gamma=gamma, **options).tokens == expected


def test_a_seed_with_maximal_coupling_is_planned_without_a_clock(llm: outrider.LLM) -> None:
    """Catches "same seed, same text" broken by timings: the text depends on gamma there, and gamma on costs."""

    def policy(**options: Any) -> Any:
        return llm.decoder(Options(**options)).gamma

    assert not policy(temperature=1.0, seed=1).clock
    for options in ({"temperature": 0.0, "seed": 1}, {"temperature": 1.0}, {"temperature": 1.0, "coupling": "gumbel"}):
        assert policy(**options).clock
        assert policy(**options) is policy(**options), "what steps cost is remembered from call to call"
    texts = [llm.generate(PROMPT, max_new_tokens=24, temperature=1.0, seed=5).tokens for _ in range(2)]
    assert texts[0] == texts[1]


def test_ends(llm: outrider.LLM) -> None:
    """Catches reasons and texts that do not fit: end token, stop string, length, and no end token at all."""
    free = llm.generate(PROMPT, max_new_tokens=40, eos=())
    assert (free.finish_reason, len(free.tokens)) == ("length", 40)
    ended = llm.generate(PROMPT, max_new_tokens=40, eos=free.tokens[7])
    assert ended.finish_reason == "eos"
    assert ended.tokens == free.tokens[: free.tokens.index(free.tokens[7]) + 1]
    stop = free.text[9:12]
    stopped = llm.generate(PROMPT, max_new_tokens=40, eos=(), stop=stop)
    assert stopped.finish_reason == "stop"
    assert stopped.text == free.text[: free.text.index(stop)]
    criteria = tf.StoppingCriteriaList([tf.MaxLengthCriteria(free.prompt_tokens + 5)])
    limited = llm.generate(PROMPT, max_new_tokens=40, eos=(), stopping_criteria=criteria)
    assert (limited.finish_reason, limited.tokens) == ("criteria", free.tokens[:5])


def test_processors(llm: outrider.LLM) -> None:
    """Catches a LogitsProcessorList that is accepted and not used."""
    free = llm.generate(PROMPT, max_new_tokens=20).tokens
    without = tf.LogitsProcessorList([tf.SuppressTokensLogitsProcessor([free[0]])])
    assert free[0] not in llm.generate(PROMPT, max_new_tokens=20, logits_processor=without).tokens


def test_the_models_own_generation_config_counts(folders: Path) -> None:
    """Catches a checkpoint's own rules ignored: greedy text must be what transformers gives with them."""
    rules = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 12, "suppress_tokens": [70]}
    llm = outrider.load(str(folders / "target"), draft="auto")
    for name, value in rules.items():
        setattr(llm.target.model.model.generation_config, name, value)
    for prompt in (PROMPT, "so"):
        expected = by_transformers(folders / "target", prompt, max_new_tokens=18, **rules)
        assert llm.generate(prompt, max_new_tokens=18).tokens == expected
    together = [o.tokens for o in llm.generate([PROMPT, "so"], max_new_tokens=18)]
    assert together == [llm.generate(p, max_new_tokens=18).tokens for p in (PROMPT, "so")]


def test_seeds(llm: outrider.LLM) -> None:
    """Catches a seed that is ignored, samples that repeat, and no fresh seed where none was given."""
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "eos": ()}
    twice = llm.generate([PROMPT, "so", PROMPT], seed=3, **options)
    assert twice[0].tokens != twice[2].tokens
    assert llm.generate(PROMPT, seed=3, **options).tokens == twice[0].tokens
    assert llm.generate([PROMPT, PROMPT], seed=[4, 3], **options)[1].tokens == twice[0].tokens
    assert llm.generate(PROMPT, **options).tokens != llm.generate(PROMPT, **options).tokens


def test_prompts_of_one_call_draw_different_noise(llm: outrider.LLM) -> None:
    """Eight prompts of equal length at temperature 1 gave two answers: all drew the same noise at the same places.

    Where every token is as likely, the text is the noise and nothing else.
    """
    flat: dict[str, Any] = {"logits_processor": [lambda ids, scores: scores * 0], "temperature": 1.0, "eos": ()}
    prompts = [[first, 5, 6] for first in range(8)]
    for coupling in ("maximal", "gumbel"):
        texts = [o.tokens for o in llm.generate(prompts, max_new_tokens=4, seed=1, coupling=coupling, **flat)]
        assert len(set(map(tuple, texts))) == 8
        assert texts[3] == llm.generate(prompts[3], max_new_tokens=4, seed=1, coupling=coupling, **flat).tokens


def test_a_stop_string_that_is_no_token_ends_nothing_but_itself(llm: outrider.LLM) -> None:
    """A tokenizer gives its unknown token for any string that is none: stop="\\n\\n" ended texts at token 0."""
    llm = llm.with_draft("copy")
    llm.tokenizer = copy.deepcopy(llm.tokenizer)
    llm.tokenizer.add_special_tokens({"unk_token": llm.tokenizer.convert_ids_to_tokens(5)})
    llm.tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    assert llm.tokenizer.unk_token_id == 5
    assert llm.call(Options(stop="\n\n", eos=())).stopping.eos == frozenset()
    ends = llm.call(Options(stop=["<end>", "no token"], eos=())).stopping.eos
    assert ends == {llm.tokenizer.convert_tokens_to_ids("<end>")}


def test_options_that_forbid_every_token_are_named(llm: outrider.LLM) -> None:
    """A bias of -inf everywhere was called NaN logits of the model."""
    size = llm.target.model.vocab_size
    nothing = dict.fromkeys(range(size), -math.inf)
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericalError, match=f"logit_bias together forbid all {size}; allow at least one"):
            llm.generate(PROMPT, logit_bias=nothing, temperature=temperature)

    def forbid(ids: Any, scores: Any) -> Any:
        return scores * 0 - math.inf if ids.shape[1] > 8 else scores

    with pytest.raises(NumericalError, match=r"after 9 tokens: logits_processor \(function\) together forbid"):
        llm.generate([3, 4, 5], logits_processor=[forbid], max_new_tokens=12, eos=())


def test_statistics_and_json(llm: outrider.LLM) -> None:
    """Catches a statistic that is missing, and an output that JSON cannot carry."""
    output = llm.generate(PROMPT, max_new_tokens=30, eos=())
    told = json.loads(json.dumps(output.to_json(), allow_nan=False))
    assert set(told["stats"]) == set(Stats.__dataclass_fields__)
    assert told["stats"]["tokens"] == len(told["tokens"]) == 30
    assert told["stats"]["drafter"] == "copy+ngram"
    assert output.trace.records[0].position == output.prompt_tokens


def test_chat(folders: Path) -> None:
    """Catches a conversation that is not what the template makes of it."""
    llm = outrider.load(str(folders / "chatty"))
    messages = [{"role": "user", "content": "the fox"}, {"role": "user", "content": "so"}]
    assert llm.chat(messages, max_new_tokens=9).tokens == llm.generate("the fox so ", max_new_tokens=9).tokens
    with pytest.raises(PromptError, match="messages is empty"):
        llm.chat([])


def test_chat_without_a_template(llm: outrider.LLM) -> None:
    """Catches a made-up template: a base model cannot chat."""
    with pytest.raises(BadOption, match="has no chat template; give it a prompt as text"):
        llm.chat([{"role": "user", "content": "hello"}])


def test_a_drafter_of_ones_own(folders: Path, llm: outrider.LLM) -> None:
    """Catches a package that must be edited for a new drafter, and one that hides the drafter's failure."""

    class Broken:
        name = "broken"

        def start(self, rows: int, shape: Any, target: Any) -> Any:
            raise RuntimeError("not today")

    own = outrider.load(str(folders / "target"), draft=Broken())
    with pytest.warns(UserWarning, match="not today"):
        output = own.generate(PROMPT, max_new_tokens=12)
    assert output.tokens == llm.generate(PROMPT, max_new_tokens=12).tokens
    assert output.stats.drafter_error == "RuntimeError: not today"
    assert output.stats.drafter == "broken"


def test_limits(llm: outrider.LLM) -> None:
    """Catches text beyond the model's last position, and a prompt cut in silence."""
    close = llm.generate([5] * 125, max_new_tokens=50, eos=())
    assert (len(close.tokens), close.finish_reason) == (3, "length")
    with pytest.raises(PromptError, match="the prompt has 128 tokens, the model's limit is 128; shorten it"):
        llm.generate([5] * 128)


CALLS: dict[str, tuple[Callable[[outrider.LLM], Any], str]] = {
    "empty text": (lambda m: m.generate(""), "the prompt is empty"),
    "empty ids": (lambda m: m.generate([[]]), "the prompt is empty"),
    "nothing": (lambda m: m.generate([]), "no prompt was given"),
    "None": (lambda m: m.generate(None), "a prompt is a text or token ids|no prompt"),
    "a number": (lambda m: m.generate(5), "a prompt is a text or token ids"),
    "floats": (lambda m: m.generate([1.5, 2.0]), "a prompt is a text or token ids"),
    "mixed ids": (lambda m: m.generate([[1, "a"]]), "a prompt is a text or token ids"),
    "ids too large": (lambda m: m.generate([1, 2**70]), "outside the vocabulary"),
    "negative ids": (lambda m: m.generate([1, -4]), "outside the vocabulary"),
    "gamma": (lambda m: m.generate("a", gamma=-1), "gamma must be"),
    "gamma by name": (lambda m: m.generate("a", gamma="often"), "'auto', 'gradient' or a policy"),
    "gamma too large": (lambda m: m.generate("a", gamma=9), "needs a width of 10"),
    "temperature": (lambda m: m.generate("a", temperature=-1), "temperature must be at least 0"),
    "top_p": (lambda m: m.generate("a", top_p=1.5), "top_p must be above 0 and at most 1"),
    "unknown option": (lambda m: m.generate("a", max_tokens=5), "unknown option 'max_tokens'; did you mean"),
    "bias": (lambda m: m.generate("a", logit_bias={9999: 1}), r"logit_bias names token \[9999\]"),
    "stop": (lambda m: m.generate("a", stop=""), "stop must be non-empty"),
    "stream": (lambda m: list(m.stream("", max_new_tokens=3)), "the prompt is empty"),
    "stream option": (lambda m: list(m.stream("a", gama=3)), "unknown option 'gama'; did you mean 'gamma'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_calls(llm: outrider.LLM, name: str) -> None:
    """Catches a stack trace, or silence, where one line with the rule and the remedy is due."""
    call, says = CALLS[name]
    with pytest.raises(BadOption, match=says) as caught:
        call(llm)
    assert "\n" not in str(caught.value)

"""Beam search by ``LLM`` and by the command line, on small real model directories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from typer.testing import CliRunner

import library
import outrider
from outrider.cli.main import app
from outrider.drafters.base import ContextSession
from outrider.errors import BadOption, NumericalError

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    library.save_llama(root / "target")
    library.save_t5(root / "t5")
    return root


@pytest.fixture(scope="module")
def llm(folders: Path) -> outrider.LLM:
    return outrider.load(str(folders / "target"), draft="auto")


@pytest.mark.parametrize("kind", ["target", "t5"])
def test_hypotheses_are_transformers_own(folders: Path, kind: str) -> None:
    """Catches a call that asks for another search, loses a hypothesis or decodes another text."""
    llm = outrider.load(str(folders / kind), draft="auto")
    options: dict[str, Any] = {"max_new_tokens": 14, "length_penalty": 0.5, "early_stopping": "never"}
    output = llm.generate(PROMPT, beams=4, num_return=3, **options)
    kinds = {"target": tf.AutoModelForCausalLM, "t5": tf.AutoModelForSeq2SeqLM}
    words = tf.AutoTokenizer.from_pretrained(folders / kind)
    ids = words(PROMPT, return_tensors="pt", return_token_type_ids=False)
    theirs = kinds[kind].from_pretrained(folders / kind).generate(
        **ids, do_sample=False, num_beams=4, num_return_sequences=3, output_scores=True, return_dict_in_generate=True,
        **options,
    )  # fmt: skip
    skip = 1 if kind == "t5" else ids["input_ids"].shape[1]
    expected = [[t for t in row[skip:] if t != words.pad_token_id] for row in theirs.sequences.tolist()]
    assert [h.tokens for h in output.hypotheses] == expected
    assert torch.allclose(torch.tensor([h.score for h in output.hypotheses]), theirs.sequences_scores, atol=1e-4)
    assert [h.text for h in output.hypotheses] == words.batch_decode(expected, skip_special_tokens=True)
    assert (output.text, output.tokens) == (output.hypotheses[0].text, output.hypotheses[0].tokens)


def test_drafters_agree_to_the_bit(llm: outrider.LLM) -> None:
    """Catches shapes that follow the drafter: scores are compared as they are, over a list of prompts."""
    options: dict[str, Any] = {"beams": 3, "num_return": 3, "max_new_tokens": 12, "gamma": 2}
    plain = [o.hypotheses for o in outrider.LLM(llm.target, outrider.Nothing()).generate([PROMPT, "so"], **options)]
    for drafter in (llm.drafter, outrider.Copying(shortest=1), outrider.ModelDrafter(llm.target.model)):
        outputs = outrider.LLM(llm.target, drafter).generate([PROMPT, "so"], **options)
        assert [o.hypotheses for o in outputs] == plain
    assert outputs[0].stats.accepted > 0, "the target as its own drafter must be believed at times"
    assert outputs[0].stats.runs < outputs[0].stats.tokens


def test_stop_strings_end_hypotheses(llm: outrider.LLM) -> None:
    """Catches a stop string that is ignored, or left in the text."""
    free = llm.generate(PROMPT, beams=2, max_new_tokens=20, eos=())
    stop = free.text[6:8]
    # Until it first occurs the search is the free one; what it then ends is short, which this penalty favours.
    options: dict[str, Any] = {"beams": 2, "num_return": 2, "early_stopping": True, "length_penalty": -3.0}
    output = llm.generate(PROMPT, max_new_tokens=20, eos=(), stop=stop, **options)
    assert output.finish_reason == "stop"
    assert free.text.startswith(output.text)
    assert all(stop not in h.text for h in output.hypotheses)


def test_statistics_and_json(llm: outrider.LLM) -> None:
    """Catches steps that are not counted, and an output that JSON cannot carry."""
    output = llm.generate(PROMPT, beams=2, num_return=2, max_new_tokens=10, eos=())
    told = json.loads(json.dumps(output.to_json(), allow_nan=False))
    assert [h["score"] for h in told["hypotheses"]] == [h.score for h in output.hypotheses]
    assert (told["stats"]["tokens"], told["stats"]["coupling"], told["stats"]["alpha"]) == (10, "beam", None)
    assert "hypotheses" not in llm.generate(PROMPT, max_new_tokens=4).to_json()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"beams": 0}, "beams must be a whole number of at least 1, got 0"),
    "num_return": ({"beams": 2, "num_return": 3}, "num_return must be at most beams, which is 2; got 3"),
    "draft_beams": ({"beams": 4, "draft_beams": 3}, "draft_beams must be a whole number of at least 4, got 3"),
    "penalty": ({"beams": 2, "length_penalty": "long"}, "length_penalty must be a number"),
    "stopping": ({"beams": 2, "early_stopping": "soon"}, 'early_stopping must be True, False or "never"'),
    "temperature": ({"beams": 2, "temperature": 0.5}, "temperature=0.5 means nothing to beam search; leave it out"),
    "coupling": ({"beams": 2, "coupling": "gumbel"}, "coupling='gumbel' means nothing to beam search"),
    "lenience": ({"beams": 2, "lenience": 0.5}, "lenience=0.5 means nothing to beam search"),
    "policy": ({"beams": 2, "gamma": "gradient"}, "gamma must be a whole number with beams"),
    "no beams": ({"length_penalty": 2.0}, "length_penalty=2.0 means nothing to decoding without beams; set beams"),
    "gamma": ({"beams": 2, "gamma": 9}, "needs a width of 10"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(llm: outrider.LLM, name: str) -> None:
    """Catches an option that is dropped in silence."""
    options, says = REFUSED[name]
    with pytest.raises(BadOption, match=says):
        llm.generate(PROMPT, **options)


def test_not_streamed(llm: outrider.LLM) -> None:
    """Catches text shown that a later step may take back."""
    with pytest.raises(BadOption, match="beams=2 cannot be streamed"):
        list(llm.stream(PROMPT, beams=2))


def test_a_drafter_that_cannot_fork(llm: outrider.LLM) -> None:
    """Catches a drafter that is left out in silence because beam search asks more of it."""

    class Session:
        def propose(self, *_: Any) -> outrider.Draft:
            return outrider.Draft(torch.zeros((3, 1), dtype=torch.int64), None, torch.ones((3, 1)).bool())

        def admit(self, *_: Any) -> None: ...

        release = commit = rewind = select = admit

    class Rigid:
        name = "rigid"

        def start(self, rows: int, shape: Any, target: Any) -> Any:
            return Session()

    with pytest.raises(BadOption, match=r"Session has no fork\(rows\)"):
        outrider.LLM(llm.target, Rigid()).generate(PROMPT, beams=2, max_new_tokens=6)


def test_a_cascade_is_refused(llm: outrider.LLM) -> None:
    """Catches a cascade that is forked between what it believes and what is true."""
    model = outrider.ModelDrafter(llm.target.model)
    with pytest.raises(BadOption, match=r"_CascadeSession has no fork\(rows\)"):
        outrider.LLM(llm.target, outrider.Cascade(outrider.Uniform(), model)).generate(PROMPT, beams=2)


class Broken:
    """A target whose logits are not numbers behind one token."""

    def __init__(self, model: Any, token: int) -> None:
        self.whole, self.token = model, token

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def start(self, rows: int, shape: Any) -> Any:
        session = self.whole.start(rows, shape)
        feed = session._feed

        def broken(tokens: torch.Tensor, positions: torch.Tensor) -> Any:
            logits, hidden = feed(tokens, positions)
            return logits.masked_fill((tokens == self.token)[..., None], torch.nan), hidden

        session._feed = broken
        return session


class Always:
    """Guesses one token, whatever the text."""

    name = "always"

    def __init__(self, token: int) -> None:
        self.token = token

    def start(self, rows: int, shape: Any, target: Any) -> Any:
        token = self.token

        class Session(ContextSession):
            def propose(self, gamma: int, sampling: Any, noise: Any, at: torch.Tensor) -> outrider.Draft:
                guesses = torch.full((self.context.rows, gamma), token)
                return outrider.Draft(guesses, None, torch.ones_like(guesses).bool())

        return Session(rows, shape, target)


def test_logits_that_are_not_numbers(llm: outrider.LLM) -> None:
    """Catches a search that ranks NaN, and one that ends because of a guess nobody took."""
    options: dict[str, Any] = {"beams": 2, "num_return": 2, "max_new_tokens": 8, "eos": ()}
    plain = llm.generate(PROMPT, **options)

    def broken(token: int, drafter: Any) -> Any:
        target = replace(llm.target, model=Broken(llm.target.model, token))
        return outrider.LLM(target, drafter).generate(PROMPT, **options).hypotheses

    with pytest.raises(NumericalError, match="NaN or infinite logits after"):
        broken(plain.tokens[0], outrider.Nothing())
    unlikely = int(llm.target.model.vocab_size) - 1
    assert broken(unlikely, outrider.Nothing()) == plain.hypotheses, "the search meets this token by itself"
    assert broken(unlikely, Always(unlikely)) == plain.hypotheses


def test_command_line(folders: Path, llm: outrider.LLM) -> None:
    """Catches an option that does not reach the search, and hypotheses that are not shown."""
    command = ["generate", PROMPT, "--target", str(folders / "target"), "-n", "8", "--beams", "3"]
    expected = llm.generate(PROMPT, beams=3, num_return=2, max_new_tokens=8, early_stopping=True)
    shown = CliRunner().invoke(app, [*command, "--num-return", "2", "--early-stopping", "true", "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["hypotheses"] == expected.to_json()["hypotheses"]
    plain = CliRunner().invoke(app, [*command, "--num-return", "2", "--early-stopping", "true"])
    assert plain.stdout == "".join(f"{h.score:.4f}\t{h.text}\n" for h in expected.hypotheses)
    refused = CliRunner().invoke(app, [*command, "--show-trace"])
    assert isinstance(refused.exception, BadOption) and "--show-trace" in str(refused.exception)

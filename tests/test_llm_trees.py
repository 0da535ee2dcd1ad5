"""Trees of guesses through the front door and the command line, on small real model directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import library
import outrider
from outrider.cli.main import app
from outrider.errors import BadOption

pytest.importorskip("numba")

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    library.save_llama(root / "target")
    library.save_t5(root / "t5")
    return root


@pytest.fixture(scope="module")
def llm(folders: Path) -> outrider.LLM:
    return outrider.load(str(folders / "target"), draft="auto", engine="numba", device="cpu")


@pytest.mark.parametrize("draft", ["auto", "ngram", "suffix", "copy", "self"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "coupling": "gumbel", "seed": 4}])
def test_the_text_is_plain_decodings(folders: Path, llm: outrider.LLM, draft: str, options: dict[str, Any]) -> None:
    """Catches keys or states of a tree that stay where they were run, on a model with a KV cache: to the bit."""
    given = llm.with_draft(str(folders / "target") if draft == "self" else draft)
    prompts = [PROMPT, "the the the the", "a"]
    plain = llm.generate(prompts, gamma=0, max_new_tokens=40, **options)
    for tree in ({"tree": 8}, {"tree": 8, "gamma": 5}, {"tree": 3, "gamma": 2}):
        found = given.generate(prompts, max_new_tokens=40, **tree, **options)
        assert [out.tokens for out in found] == [out.tokens for out in plain], tree
        assert all(out.stats.drafter_error is None for out in found)


def test_a_seed_gives_the_same_text_again(llm: outrider.LLM) -> None:
    """Catches a tree whose form depends on a clock: with maximal coupling the text would follow it."""
    options: dict[str, Any] = {"tree": 6, "temperature": 1.0, "seed": 9, "max_new_tokens": 30}
    texts = [llm.generate(PROMPT, **options).tokens for _ in range(2)]
    assert texts[0] == texts[1]


def test_a_stream_is_the_same_text(llm: outrider.LLM) -> None:
    """Catches a stream that knows of chains only."""
    options: dict[str, Any] = {"tree": 6, "gamma": 4, "max_new_tokens": 30}
    streamed = "".join(chunk.text for chunk in llm.stream(PROMPT, **options))
    assert streamed == llm.generate(PROMPT, **options).text


def test_statistics_count_all_guesses_of_a_tree(llm: outrider.LLM, folders: Path) -> None:
    """Catches guesses that were run and are told by nobody."""
    stats = llm.with_draft(str(folders / "target")).generate(PROMPT, tree=8, gamma=3, max_new_tokens=30).stats
    assert stats.drafted > stats.examined and stats.accepted + stats.wasted == stats.drafted
    assert stats.tokens_per_run > 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tree": 0}, "tree must be"),
        ({"tree": 2.5}, "tree must be"),
        ({"tree": 9}, "width=10"),
        ({"tree": 4, "coupling": "block", "temperature": 1.0}, "coupling='block' judges chains"),
        ({"tree": 4, "gamma": 0}, "gamma=0 makes no guesses, and tree=4 is made of them"),
        ({"tree": 4, "lenience": 0.5, "temperature": 1.0}, "lenience=0.5 judges chains"),
        ({"tree": 4, "gamma": "gradient"}, "gamma must be a whole number with tree"),
        ({"tree": 4, "beams": 2}, "tree=4 means nothing to beam search"),
    ],
)
def test_what_does_not_go_with_a_tree_is_refused(llm: outrider.LLM, options: dict[str, Any], words: str) -> None:
    """Catches an option that is ignored."""
    with pytest.raises(BadOption, match=words):
        llm.generate(PROMPT, **options)


def test_models_that_run_no_trees_are_refused_by_name(folders: Path) -> None:
    """Catches a model that runs chains where trees were asked for."""
    with pytest.raises(BadOption, match="tree: engine 'torch.* does not run trees"):
        outrider.load(str(folders / "target"), engine="torch").generate(PROMPT, tree=4)
    with pytest.raises(BadOption, match="tree: an encoder-decoder model does not run trees"):
        outrider.load(str(folders / "t5")).generate(PROMPT, tree=4)


def test_the_command_line_knows_trees(folders: Path) -> None:
    """Catches an option of Python that a shell does not have."""
    command = ["generate", PROMPT, "--target", str(folders / "target"), "--tree", "6", "--json", "-n", "12"]
    found = CliRunner().invoke(app, [*command, "--engine", "numba"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["stats"]["tokens"] == 12

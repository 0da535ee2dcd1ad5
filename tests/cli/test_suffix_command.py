"""``outrider suffix build``, and drafts from what it made: guesses from texts of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import outrider as library_of_outrider
from command import Command
from library import save_llama
from outrider.errors import BadOption, ModelNotFound, TokenizerMismatch

PROMPT = "the cat sat on the"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("suffix") / "target")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("the cat sat on the mat\nthe cat sat on the hat\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("a dog sat on the mat\n", encoding="utf-8")
    return tmp_path


def test_an_index_is_built_and_drafted_from(target: Path, text: Path, outrider: Command) -> None:
    """Named with and without ``suffix:``, and the text stays what it was."""
    out = text / "index"
    words = ["suffix", "build", str(text / "a.txt"), str(text / "b.txt"), "--target", str(target), "--out", str(out)]
    said = outrider(*words, "--json")
    made = json.loads(said.out)
    assert said.code == 0 and made["files"] == 2 and made["tokens"] > 10 and made["bytes"] > 0
    again = outrider(*words)  # replaces it
    assert again.code == 0 and f"--draft suffix:{out}" in again.out
    plain = library_of_outrider.load(str(target), "none").generate(PROMPT, max_new_tokens=8)
    for draft in (f"suffix:{out}", str(out)):
        llm = library_of_outrider.load(str(target), draft)
        found = llm.generate(PROMPT, max_new_tokens=8, gamma=4)
        assert llm.drafter.name == "suffix:index" and found.tokens == plain.tokens
        assert found.stats.drafted > 0, "the end of the prompt stands in the texts"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "file FILE is empty; leave it out"),
        (b" \n\n", "file FILE is empty; leave it out"),
        (b"abc\0def", "file FILE is binary (it has NUL bytes); name files of text"),
        (b"caf\xe9", "file FILE is not UTF-8 (byte 0xe9 at 3); convert it first"),
        (None, "file FILE does not exist; name files of text"),
    ],
)
def test_files_that_are_no_text(target: Path, text: Path, data: bytes | None, says: str, outrider: Command) -> None:
    bad = text / "bad"
    if data is not None:
        bad.write_bytes(data)
    said = outrider("suffix", "build", str(text / "a.txt"), str(bad), "--target", str(target), "--out", str(text / "x"))
    assert said.code == 2 and says.replace("FILE", str(bad)) in said.err and said.err.count("\n") == 1
    assert not (text / "x").exists(), "nothing half-made"


def test_places_that_cannot_be(target: Path, text: Path, outrider: Command) -> None:
    words = ["suffix", "build", str(text / "a.txt"), "--target", str(target), "--out"]
    kept = text / "kept"
    kept.mkdir()
    said = outrider(*words, str(kept))
    assert said.code == 2 and "is there already and is no suffix index" in said.err
    said = outrider(*words, str(text / "no" / "where"))
    assert said.code == 2 and "does not exist; make it" in said.err
    said = outrider("suffix", "build", str(kept), "--target", str(target), "--out", str(text / "x"))
    assert said.code == 2 and "is a directory; name the files in it" in said.err


def test_an_index_of_another_tokenizer_is_refused(target: Path, text: Path, outrider: Command) -> None:
    other = save_llama(text / "other", turned=True)
    out = text / "index"
    assert outrider("suffix", "build", str(text / "a.txt"), "--target", str(other), "--out", str(out)).code == 0
    with pytest.raises(TokenizerMismatch, match="was built with another tokenizer than the target's"):
        library_of_outrider.load(str(target), f"suffix:{out}")


def test_names_that_mean_no_index(target: Path, text: Path) -> None:
    with pytest.raises(ModelNotFound, match="no suffix index in .*nowhere: outrider_suffix.json is missing"):
        library_of_outrider.load(str(target), f"suffix:{text}/nowhere")
    with pytest.raises(BadOption, match="names no index; write suffix:DIR"):
        library_of_outrider.load(str(target), "suffix:")
    with pytest.raises(BadOption, match="cannot check guesses"):
        library_of_outrider.load(str(target), "copy>suffix")


def test_outputs_are_remembered_if_asked(target: Path) -> None:
    """Off by default. The same prompt again takes fewer runs, and a rehearsal is no output."""
    llm = library_of_outrider.load(str(target), "suffix", remember=True)
    assert llm.memory is not None
    llm.warm_up()
    assert len(llm.memory) == 0
    first = llm.generate("a dog", max_new_tokens=24, gamma=6)
    again = llm.generate("a dog", max_new_tokens=24, gamma=6)
    assert again.tokens == first.tokens and again.stats.runs < first.stats.runs
    assert len(llm.with_draft("copy").memory or ()) == len(llm.memory) > 24
    streamed = [chunk.tokens for chunk in llm.stream("a cat", max_new_tokens=8, gamma=4)]
    assert streamed and len(llm.memory) > 40
    assert library_of_outrider.load(str(target), "suffix").memory is None


@pytest.mark.parametrize("options", [{"coupling": "gumbel"}, {"coupling": "maximal"}, {"coupling": "block"}])
def test_the_same_seed_again(target: Path, options: dict[str, str]) -> None:
    """With Gumbel coupling a seed has one text, whatever is remembered; without, nothing of that seed is searched."""
    llm = library_of_outrider.load(str(target), "suffix", remember=True)
    plain = library_of_outrider.load(str(target), "suffix")
    asked = {"max_new_tokens": 24, "gamma": 4, "temperature": 1.0, "seed": 5, **options}
    texts = [llm.generate("a dog", **asked).tokens for _ in range(3)]
    assert texts == [plain.generate("a dog", **asked).tokens] * 3


def test_the_command_wants_keys(target: Path, outrider: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    said = outrider("serve", str(target), "--draft", "suffix", "--remember", "--port", "0")
    assert said.code == 2 and "--remember keeps answers apart by API key, and there is none" in said.err
    monkeypatch.setenv("OUTRIDER_API_KEY", "a-key-of-the-test")
    said = outrider("serve", str(target), "--draft", "copy", "--remember", "--port", "0")
    assert said.code == 2 and "--remember is for draft 'suffix' or 'suffix:DIR', got 'copy'" in said.err

"""``draft=`` with a model of another tokenizer: through ``outrider.load``, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import library
import outrider
from outrider.drafters.other_tokenizer import OtherTokenizerDrafter
from outrider.errors import BadOption, TokenizerMismatch
from two_tokenizers import sentencepiece

PROMPTS = ["the quick brown fox the quick", "a", "in the end 日本 it was naïve,\n\tand so on"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, drafts with the same tokens in another order and with SentencePiece's, and two encoder-decoders."""
    root = tmp_path_factory.mktemp("others")
    library.save_llama(root / "target")
    library.save_llama(root / "turned", seed=1, turned=True)
    library.save_llama(root / "pieces", seed=2, words=sentencepiece())
    library.save_t5(root / "t5")
    library.save_llama(root / "other")
    library.save_t5(root / "t5-turned")
    library.tokenizer(turned=True).save_pretrained(root / "t5-turned")
    return root


@pytest.mark.parametrize(("target", "draft"), [("target", "turned"), ("target", "pieces"), ("pieces", "target")])
def test_the_text_is_the_targets(folders: Path, target: str, draft: str) -> None:
    """Catches a pair that is still refused, and a text, alone or in a batch, that shows which draft was used."""
    llm = outrider.load(str(folders / target), draft=str(folders / draft), device="cpu")
    assert isinstance(llm.drafter, OtherTokenizerDrafter)
    assert llm.drafter.name == f"{folders / draft}, other tokenizer"
    plain = llm.with_draft(None)
    for options in ({}, {"temperature": 1.0, "coupling": "gumbel", "seed": 5}):
        wanted = [out.tokens for out in plain.generate(PROMPTS, max_new_tokens=20, **options)]
        outs = llm.generate(PROMPTS, max_new_tokens=20, gamma=4, **options)
        assert [out.tokens for out in outs] == wanted
        assert [llm.generate(p, max_new_tokens=20, gamma=4, **options).tokens for p in PROMPTS[:1]] == wanted[:1]
        assert outs[0].stats.drafter_error is None and outs[0].stats.drafted > 0
        assert outs[0].stats.drafter == llm.drafter.name
    out = llm.generate(PROMPTS[0], max_new_tokens=20, temperature=1.0, coupling="maximal", gamma=4)
    assert out.stats.drafter_error is None


def test_beams(folders: Path) -> None:
    """Catches forks that fail, or that change what beam search finds."""
    llm = outrider.load(str(folders / "target"), draft=str(folders / "pieces"), device="cpu")
    options = {"beams": 3, "max_new_tokens": 8}
    out = llm.generate(PROMPTS[0], **options)
    assert out.stats.drafter_error is None
    assert out.tokens == llm.with_draft(None).generate(PROMPTS[0], **options).tokens


def test_below_a_model_of_the_same_tokens(folders: Path) -> None:
    """Catches a chain whose lowest drafter may not have a tokenizer of its own."""
    llm = outrider.load(str(folders / "target"), draft=f"{folders / 'pieces'}>{folders / 'other'}", device="cpu")
    out = llm.generate(PROMPTS, max_new_tokens=12)
    assert out[0].stats.drafter_error is None
    assert [o.tokens for o in out] == [o.tokens for o in llm.with_draft(None).generate(PROMPTS, max_new_tokens=12)]


def test_not_in_the_middle_of_a_chain(folders: Path) -> None:
    """Catches a model that is asked to check guesses in tokens that it does not have."""
    with pytest.raises(BadOption, match="another tokenizer than target .* use it alone") as caught:
        outrider.load(str(folders / "target"), draft=f"copy>{folders / 'pieces'}", device="cpu")
    assert "\n" not in str(caught.value)


def test_encoders_read_one_source(folders: Path) -> None:
    """Catches an encoder that is given another tokenizer's source."""
    with pytest.raises(TokenizerMismatch, match="encoder-decoder models must share one"):
        outrider.load(str(folders / "t5"), draft=str(folders / "t5-turned"), device="cpu")


def test_a_tokenizer_that_loses_text(folders: Path, tmp_path: Path) -> None:
    """Catches a draft that would read another text than was written: one line names both."""
    from tokenizers import normalizers

    words = library.tokenizer(turned=True)
    words.backend_tokenizer.normalizer = normalizers.Lowercase()
    library.save_llama(tmp_path / "uncased", words=words)
    with pytest.raises(TokenizerMismatch, match="does not give a text back") as caught:
        outrider.load(str(folders / "target"), draft=str(tmp_path / "uncased"), device="cpu")
    assert "uncased" in str(caught.value) and "target" in str(caught.value) and "\n" not in str(caught.value)

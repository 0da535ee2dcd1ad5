"""The measures of quality: known values, and a sandbox that lets nothing out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.paper import quality
from outrider.paper.quality import Rouge
from outrider.paper.texts import PROGRAMS, Program


def test_rouge_by_hand() -> None:
    """Catches a precision for a recall, a pair for a word, and a subsequence that must have no gaps."""
    found = Rouge.of("the cat sat down", "the cat sat")
    assert found.two == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert found.one == found.longest == pytest.approx(2 * (3 / 4) * 1 / (3 / 4 + 1))
    assert Rouge.of("A cat, a dog.", "a CAT a dog") == Rouge(1.0, 1.0, 1.0)
    assert Rouge.of("one", "one") == Rouge(1.0, 0.0, 1.0)  # a single word has no pairs
    assert Rouge.of("a b", "b a") == Rouge(1.0, 0.0, 0.5)
    gaps = Rouge.of("police killed the gunman", "police kill the gunman")
    assert gaps.longest == pytest.approx(0.75) and gaps.two == pytest.approx(1 / 3)
    assert Rouge.of("", "a") == Rouge.of("a", "") == Rouge(0.0, 0.0, 0.0)


def test_exact_match_is_of_words_and_signs() -> None:
    assert quality.exact_match(" Wo ist  der Bahnhof?\n", "Wo ist der Bahnhof?")
    assert not quality.exact_match("Wo ist der Bahnhof", "Wo ist der Bahnhof?")
    assert not quality.exact_match("wo ist der Bahnhof?", "Wo ist der Bahnhof?")


def test_bleu_is_a_share() -> None:
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    texts = ["the quick brown fox jumps over it", "a sentence of its own kind"]
    assert quality.bleu(texts, texts) == pytest.approx(1.0)
    found = quality.bleu(["nothing alike at all here", "no"], texts)
    assert found is not None and found < 0.2
    mean = quality.mean_bleu([texts[0], "no"], texts)
    assert quality.mean_bleu(texts, texts) == pytest.approx(1.0) and mean is not None and 0.5 <= mean < 0.55


def test_without_sacrebleu_the_cell_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert (
        quality.bleu(["a"], ["a"]) is None
        and quality.mean_bleu(["a"], ["a"]) is None
        and "pip install" in quality.NO_BLEU
    )


def test_the_body_of_a_function_ends_where_the_indent_does() -> None:
    assert quality.body_of("    return 1\n\n    # more\nprint(2)\n") == "    return 1\n\n    # more"
    assert quality.body_of("    return 1") == "    return 1"
    assert quality.body_of("print(2)") == ""


RIGHT = {
    "add": "    return a + b\n", "is_even": "    return n % 2 == 0\n", "largest": "    return max(numbers)\n",
    "reverse": "    return text[::-1]\n", "count_vowels": "    return sum(c in 'aeiou' for c in text)\n",
    "factorial": "    return 1 if n == 0 else n * factorial(n - 1)\n", "last_word": "    return text.split()[-1]\n",
    "squares": "    return [n * n for n in numbers]\n", "is_palindrome": "    return text == text[::-1]\n",
    "mean": "    return sum(numbers) / len(numbers)\n",
}  # fmt: skip


@pytest.mark.slow
def test_every_program_can_be_passed_and_failed() -> None:
    for program in PROGRAMS:
        name = program.prompt.split("(")[0].removeprefix("def ")
        assert quality.passes(program, RIGHT[name]), name
        assert not quality.passes(program, "    return None\n"), name


@pytest.mark.slow
def test_a_program_may_import_what_does_no_harm() -> None:
    """Programs of HumanEval begin with ``from typing import List``: every one failed."""
    program = Program("from typing import List\nimport math\n\n\ndef f(x: List[int]) -> int:\n", "assert f([4]) == 2")
    assert quality.passes(program, "    return math.isqrt(x[0])\n")
    assert not quality.passes(program, "    import socket\n    return 2\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "import os; os.remove({path!r}) or os.system('touch {path}')",
        "open({path!r}, 'w').write('x')",
        "__import__('os').system('touch {path}')",
        "__import__('subprocess').run(['touch', {path!r}])",
        "[].__class__.__base__.__subclasses__() and __import__('pathlib').Path({path!r}).touch()",
    ],
)
def test_a_program_can_touch_nothing(tmp_path: Path, body: str) -> None:
    victim = tmp_path / "victim"
    program = Program("def f():\n", "assert f() is None")
    assert not quality.passes(program, f"    {body.format(path=str(victim))}\n")
    assert not victim.exists()
    assert quality.passes(program, "    return None\n")


@pytest.mark.slow
def test_a_program_that_never_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "SECONDS", 1)
    assert not quality.passes(Program("def f():\n", "f()"), "    while True: pass\n")

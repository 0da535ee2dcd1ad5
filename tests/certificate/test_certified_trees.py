"""The certificate's part about trees of guesses: run where the engine runs them, and able to fail."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import library
import outrider
from outrider.certificate import Certificate, Plan, certify
from outrider.certificate.identity import Rows, compare
from outrider.decoding import tree_loop
from outrider.drafters import BUILT_IN
from outrider.errors import BadOption, NotForkable

PLAN = Plan(("the thin the thin", "a bc a bc a"), max_new_tokens=3, gammas=(2,), samples=0, engine_samples=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("certified") / "llama"))


def certified(llm: outrider.LLM, plan: Plan) -> Certificate:
    return certify(llm, plan, Certificate("tiny", llm.drafter.name), lambda *_: None)


def test_trees_are_compared_where_the_engine_runs_them(folder: str) -> None:
    """Catches a part that is left out without a word, at one temperature, or with chains only."""
    llm = outrider.load(folder, draft="auto", engine="numba", device="cpu")
    done = certified(llm, replace(PLAN, max_new_tokens=12))
    assert done.verdict == "passed" and not any("trees" in part for part in done.left_out)
    names = {llm.drafter.name, *BUILT_IN} - {"auto", "none"}
    assert {(r.drafter, bool(r.seeds)) for r in done.trees} == {
        (name, warm) for name in names for warm in (False, True)
    }
    assert {r.tree for r in done.trees} == {8} and any(r.branched for r in done.trees)
    assert json.loads(json.dumps(done.to_json()))["trees"][0]["passed"]


def test_drafters_that_cannot_be_forked_are_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a refusal of another kind that is taken for that, and trees that nobody drafted."""
    llm = outrider.load(folder, draft="copy", engine="numba", device="cpu")

    def refuse(error: type[Exception]) -> None:
        def refused(*_: Any) -> Any:
            raise error("refused")

        monkeypatch.setattr(tree_loop, "grow", refused)

    refuse(NotForkable)
    done = certified(llm, PLAN)
    assert not done.trees and "trees of guesses by copy, which cannot draft them" in done.left_out
    assert any(part.startswith("trees that branch") for part in done.left_out)
    refuse(BadOption)
    with pytest.raises(BadOption, match="refused"):
        certified(llm, PLAN)


def test_a_tree_that_changes_a_token_is_found(folder: str) -> None:
    """Catches a part of the certificate that cannot fail."""
    llm = outrider.load(folder, draft="ngram", engine="numba", device="cpu")
    rows = Rows([llm.tokenizer.encode(text) for text in PLAN.prompts], 8)
    wanted = rows.generate(outrider.LLM(llm.target, outrider.Nothing(), slots=1))
    wanted[0].tokens[3] = (wanted[0].tokens[3] + 1) % 40
    (result,) = compare(llm, rows, wanted, [llm.drafter], [3], tree=6)
    assert not result.passed and (result.mismatches, result.tree) == (1, 6)
    done = Certificate("tiny", "ngram", trees=[result], finished=True)
    assert (done.verdict, done.mismatches) == ("failed", 1)

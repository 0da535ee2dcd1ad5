"""The certificate on tiny models: it passes where it should, and each part can fail."""

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
from outrider.certificate import Certificate, Plan, certify, distribution
from outrider.certificate.distribution import DistributionResult
from outrider.certificate.identity import Rows, compare
from outrider.certificate.invariance import invariance
from outrider.cli.main import app
from outrider.core.protocols import Verifier
from outrider.core.verification.choose import VERIFIERS
from outrider.drafters import BUILT_IN
from outrider.errors import BadOption
from outrider.models.cached_session import CachedSession

PROMPTS = ("the thin the thin", "a bc a bc a")
PLAN = Plan(prompts=PROMPTS, max_new_tokens=10, gammas=(1, 4), samples=20_000, engine_samples=200)
FAST = replace(PLAN, max_new_tokens=3, gammas=(2,), samples=0, engine_samples=0)
SAVE = {"llama": library.save_llama, "t5": library.save_t5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("certificate")
    return {name: str(save(root / name)) for name, save in SAVE.items()}


@pytest.fixture(scope="module", params=list(SAVE))
def llm(request: Any, folders: dict[str, str]) -> outrider.LLM:
    return outrider.load(folders[request.param], draft="auto", dtype="float32")


def certified(llm: outrider.LLM, plan: Plan) -> Certificate:
    return certify(llm, plan, Certificate("tiny", llm.drafter.name), lambda *_: None)


def rows_of(llm: outrider.LLM, tokens: int, seeds: tuple[int, ...] = ()) -> Rows:
    return Rows([llm.tokenizer.encode(text) for text in PROMPTS], tokens, seeds)


def plain(llm: outrider.LLM, rows: Rows, slots: int) -> Any:
    return rows.generate(outrider.LLM(llm.target, outrider.Nothing(), slots=slots))


def test_a_right_engine_passes(llm: outrider.LLM) -> None:
    """Catches a certificate that cries wolf, leaves a part out, or crashes on an encoder-decoder."""
    shown: list[tuple[str, float]] = []
    done = certify(llm, PLAN, Certificate("tiny", "auto"), lambda *step: shown.append(step))
    assert done.verdict == "passed", done.to_json()
    assert done.mismatches == 0 and done.tokens > 400
    assert {r.part for r in done.distribution} == {"rule", "control", "engine"}
    assert {s for r in done.gumbel for s in r.seeds} == {0, 1, 2}
    assert {r.slots for r in done.greedy} == {1, 2}, "a prompt alone, and as many slots as prompts"
    names = {r.drafter for r in done.greedy}
    assert {llm.drafter.name, *BUILT_IN} - {"auto", "none"} < names and len(names) == len(BUILT_IN) - 2 + 3
    assert not done.trees and done.left_out == ["trees of guesses, which this engine does not run"]
    read = json.loads(json.dumps(done.to_json(), allow_nan=False))
    assert (read["verdict"], read["passed"], read["mismatched_tokens"]) == ("passed", True, 0)
    told = read["conditions"]
    assert (told["dtype"], told["slots"], told["width"]) == ("float32", 2, 9)
    assert {"linear_layers", "cpu_capability", "threads", "torch", "attention"} <= told.keys()
    shares = [share for _, share in shown]
    assert shares == sorted(shares) and shares[-1] > 0.9, "a bar that runs backwards"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_pass(folders: dict[str, str], dtype: str) -> None:
    """Catches shapes that depend on the guesses, and overflow, in the dtypes whose rounding shows it most."""
    for folder in folders.values():
        done = certified(outrider.load(folder, dtype=dtype), replace(FAST, max_new_tokens=6, gammas=(4,)))
        assert (done.verdict, done.conditions["dtype"], len(done.left_out)) == ("passed", dtype, 3)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_changed_token_is_found_and_explained(llm: outrider.LLM, slots: int) -> None:
    """Catches a comparison that cannot fail: plain outputs with one token changed must be reported."""
    rows = rows_of(llm, 8)
    wanted = plain(llm, rows, slots)
    wanted[1].tokens[5] = (wanted[1].tokens[5] + 1) % 40
    engine = outrider.LLM(llm.target, llm.drafter, slots=slots)
    (result,) = compare(engine, rows, wanted, [outrider.Copying()], [4])
    assert not result.passed and result.mismatches == 1
    assert result.first is not None and (result.first.prompt, result.first.position) == (1, 5)
    assert result.first.plain_gap < 0  # the changed token was not the target's choice


def test_a_drafter_that_fails_is_no_evidence(llm: outrider.LLM) -> None:
    """Catches a certificate for a drafter that never drafted."""

    class Broken:
        name = "broken"

        def start(self, *arguments: Any) -> Any:
            raise RuntimeError("no")

    rows = rows_of(llm, 4)
    with pytest.warns(UserWarning, match="drafter failed"):
        (result,) = compare(llm, rows, plain(llm, rows, 2), [Broken()], [2])
    assert not result.passed and "no" in (result.error or "")


def test_kernels_that_mix_rows_are_caught(llm: outrider.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an invariance check that compares a thing with itself."""
    feed = CachedSession._feed

    def leaky(self: Any, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        logits, hidden = feed(self, tokens, positions)
        return logits + tokens.sum() * 1e-4, hidden

    monkeypatch.setattr(CachedSession, "_feed", leaky)
    results = invariance(llm, [llm.tokenizer.encode(t) for t in PROMPTS])
    assert any(not r.passed for r in results)


def test_a_wrong_rule_fails_the_certificate(llm: outrider.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a distribution test that cannot fail: the product's rule is replaced by one with a mistake."""
    wrong = Verifier("maximal", distribution.forgetful, exact=True, shares_noise=False)
    monkeypatch.setitem(VERIFIERS, "maximal", wrong)
    done = certified(llm, replace(PLAN, max_new_tokens=4, gammas=(2,), seeds=(), engine_samples=0))
    assert done.verdict == "failed" and done.left_out[:2] == ["temperature 1", "distribution test of the engine"]
    assert [r.part for r in done.distribution if not r.passed] == ["rule"]


def test_a_certain_target_has_no_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is sure of every token used to fail, since the wrong rule is right there too: it is no power."""
    folder = library.save_llama(tmp_path / "certain")
    model = tf.LlamaForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data *= 1000
    model.save_pretrained(folder)
    done = certified(outrider.load(str(folder)), replace(PLAN, max_new_tokens=3, gammas=(2,), seeds=()))
    assert done.verdict == "inconclusive" and not done.to_json()["passed"]
    assert all(r.inconclusive for r in done.distribution)
    assert "--prompts" in (done.distribution[0].remedy or "")
    out = tmp_path / "certificate.json"
    arguments = ["verify", str(folder), "-n", "2", "--gammas", "1", "--seeds", "0", "--out", str(out)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 3 and "INCONCLUSIVE" in shown.output and "no power" in shown.output
    assert json.loads(out.read_text())["verdict"] == "inconclusive"


def result(part: str, p_value: float, detects: float = 0.1, distance: float | None = None) -> DistributionResult:
    return DistributionResult(part, "d", "v", 2000, 9, p_value, detects, must_pass=part != "control", distance=distance)


def test_how_distribution_tests_are_judged() -> None:
    """Catches a missed control that fails for lack of draws, or passes; and a found mistake that is waved through."""
    good, bad = result("rule", 0.4), result("rule", 1e-12)
    judged = distribution.judge([good, result("control", 0.3, 0.1, distance=0.05)])
    assert all(r.inconclusive and not r.passed for r in judged)
    assert "--samples 8100" in (judged[0].remedy or "")  # four times as many find half the distance
    judged = distribution.judge([bad, result("control", 0.3, 0.1, distance=0.05)])
    assert not judged[0].passed and not judged[0].inconclusive, "a mistake that was found is a failure"
    judged = distribution.judge([good, result("control", 0.3, 0.1, distance=0.2)])
    assert judged[0].passed and not judged[1].passed and not judged[1].inconclusive, "it should have been caught"
    judged = distribution.judge([good, result("control", 0.0, 0.1, distance=0.05), result("engine", 0.5, 0.8)])
    assert [r.passed for r in judged] == [True, True, False]
    assert judged[2].inconclusive and "--engine-samples" in (judged[2].remedy or "")


def test_too_few_draws_are_told_how_many_would_do() -> None:
    """``--engine-samples 200`` was accepted, took a minute, and was inconclusive; twice the number asked for then was,
    too: rare outcomes are pooled, and what may hide among them does not shrink with the square root of draws."""
    expected = torch.tensor([0.7, 0.09, 0.08, 0.07, 0.06], dtype=torch.float64)

    def tested(samples: int) -> DistributionResult:
        counts = (expected * samples).round()
        return distribution.result_of("engine", "d", VERIFIERS["maximal"], counts, expected, None)

    few = distribution.judge([tested(200)])[0]
    assert few.inconclusive and few.remedy is not None
    asked = int(few.remedy.rpartition(" ")[2])
    assert few.remedy == f"200 draws are too few: use --engine-samples {asked}"
    assert distribution.judge([tested(asked)])[0].passed and asked <= 1000


def test_at_least_so_many_tokens(folders: dict[str, str]) -> None:
    """Catches a total that is not reached, and one that silently is not possible."""
    llm = outrider.load(folders["llama"], draft="auto")
    done = certified(llm, replace(FAST, max_new_tokens=None, tokens_total=200))
    assert 200 <= done.tokens < 300
    with pytest.raises(BadOption, match="do not fit this model's limit of 128"):
        certified(llm, replace(FAST, max_new_tokens=None, tokens_total=100_000))
    with pytest.raises(BadOption, match="give one of them"):
        replace(FAST, tokens_total=100)


def test_more_seeds_than_prompts(folders: dict[str, str]) -> None:
    """Catches rehearsed texts that are mixed up when one prompt occurs with several seeds."""
    done = certified(
        outrider.load(folders["llama"]), replace(FAST, prompts=PROMPTS[:1], max_new_tokens=10, gammas=(4,))
    )
    assert {s for r in done.gumbel for s in r.seeds} == {0, 1, 2} and done.verdict == "passed"
    assert [r.alpha for r in done.gumbel if "100%" in r.drafter] == [1.0]


def test_an_interrupted_certificate_is_unfinished(folders: dict[str, str]) -> None:
    """Catches a partial result that is lost, or that passes for a whole one."""

    def interrupt(what: str, share: float) -> None:
        if "temperature 1" in what:
            raise KeyboardInterrupt

    begun = Certificate("tiny", "auto")
    with pytest.raises(KeyboardInterrupt):
        certify(outrider.load(folders["llama"]), FAST, begun, interrupt)
    assert begun.verdict == "unfinished" and begun.greedy and not begun.gumbel and begun.seconds > 0
    assert json.loads(json.dumps(begun.to_json(), allow_nan=False))["passed"] is False


def test_the_command(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches exit codes that do not follow the verdict: 0 passed, 1 failed, 130 interrupted."""
    arguments = ["verify", folders["llama"], "-n", "2", "--gammas", "1", "--seeds", "1", "--samples", "0"]
    arguments += ["--engine-samples", "0"]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["verdict"] == "passed"
    shown = CliRunner().invoke(app, arguments)
    left_out = "left out: distribution test of the rule, distribution test of the engine"
    assert "PASSED" in shown.stdout and left_out in shown.stdout
    for raised, code, word in ((KeyboardInterrupt, 130, "UNFINISHED"), (None, 1, "FAILED")):

        def spoilt(
            self: Any,
            llm: Any,
            gamma: int | None = None,
            tree: Any = None,
            raised: Any = raised,
            honest: Any = Rows.generate,
        ) -> Any:
            if gamma is not None and raised is not None:
                raise raised
            outputs = honest(self, llm, gamma, tree)
            if gamma is not None:
                outputs[0].tokens[0] ^= 1
            return outputs

        with monkeypatch.context() as patch:
            patch.setattr(Rows, "generate", spoilt)
            shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == code and word in shown.stdout


def test_gammas_that_do_not_fit_are_refused(llm: outrider.LLM) -> None:
    """Catches a certificate that silently leaves out what was asked for."""
    with pytest.raises(BadOption, match="--width 13"):
        certified(llm, replace(FAST, gammas=(4, 12)))

"""Experiments on the pairs of the package, a few tokens each: every cell is filled or has its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import library
from command import Command
from outrider import theory
from outrider.bench.pair import Inflated
from outrider.bench.plan.forecast import TargetCosts
from outrider.core.sampling import Sampling
from outrider.drafters import Copying, ModelDrafter
from outrider.errors import BadOption
from outrider.models.hub.loading import load
from outrider.paper import acceptance, formulas, published, speed, traces
from outrider.paper.distributions import ONE, Means, ScoredToken, places
from outrider.paper.experiments import EXPERIMENTS, chosen
from outrider.paper.lab import CONTINUER, INFLATED, TRANSLATOR, Amount, Lab


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(Amount(prompts=2, tokens=6, repeats=1), device="cpu", dtype="float32")


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


def test_what_is_printed_agrees_with_the_formulas() -> None:
    """Guards the transcription: Table 1 to its digits, Table 4 within the rounding of its inputs."""
    for row in formulas.table_1(None).rows:  # type: ignore[arg-type]
        assert row.ours == row.theirs
    for known in published.SPEEDS:
        low = theory.speedup(known.alpha - 0.005, known.gamma, known.cost + 0.005)
        high = theory.speedup(known.alpha + 0.005, known.gamma, known.cost - 0.005)
        assert low - 0.05 <= known.expected <= high + 0.05, known
        assert published.ALPHAS[f"T5-XXL ({known.task})", known.draft][known.temperature] == known.alpha


def test_names_are_unique_and_unknown_ones_are_refused() -> None:
    assert len({e.name for e in EXPERIMENTS}) == len(EXPERIMENTS) == 20
    assert [e.name for e in chosen("table3, table1")] == ["table1", "table3"]
    assert [e.name for e in chosen("table4")] == ["table2"]  # one run gives both
    with pytest.raises(BadOption, match="tabel2.*did you mean table2"):
        chosen("tabel2")
    with pytest.raises(BadOption, match="names nothing"):
        chosen(" ,")


def test_alpha_is_the_overlap_on_the_targets_own_text(lab: Lab) -> None:
    """A target that drafts for itself has alpha 1 and a copier's q is a point mass; catches q of another position."""
    llm = lab.engine(CONTINUER)
    drafters = {"self": ModelDrafter(llm.target.model), "copy": Copying(shortest=1)}
    seen = list(places(llm, drafters, ["one two one two one"], Sampling(1.0), 8, seed=3))
    assert len(seen) == 8
    assert all(place.overlap("self") == pytest.approx(1.0, abs=1e-4) for place in seen)
    assert all(place.q["copy"] is None or float(place.q["copy"].max()) == 1.0 for place in seen)
    assert any(place.q["copy"] is not None for place in seen)
    again = list(places(llm, drafters, ["one two one two one"], Sampling(1.0), 8, seed=3))
    assert all(torch.equal(a.p, b.p) for a, b in zip(seen, again, strict=True))
    other = list(places(llm, drafters, ["one two one two one"], Sampling(1.0), 8, seed=4))
    assert any(not torch.equal(a.p, b.p) for a, b in zip(seen, other, strict=True))


def test_lenience_and_sharper_distributions() -> None:
    place = ScoredToken(torch.tensor([0.5, 0.3, 0.2]), {"d": torch.tensor([0.2, 0.3, 0.5]), "none": None})
    assert place.overlap("d") == pytest.approx(0.7) and place.overlap("none") == 0
    assert place.overlap("d", 0.5) == pytest.approx(0.2 + 0.3 + 0.4)
    greedy = place.under(Sampling(0.0))
    assert greedy.overlap("d") == 0 and greedy.p.tolist() == [1, 0, 0]
    assert place.rejection("d") == pytest.approx(0.4) and place.rejection("none") == 0
    assert place.under(ONE).p.tolist() == pytest.approx(place.p.tolist())
    assert place.under(Sampling(1.0, top_k=1)).q["d"].tolist() == [0, 0, 1]  # type: ignore[union-attr]
    means = Means()
    for value in (0.0, 1.0):
        means.add("x", value)
    assert means.of("x").value == 0.5 and means.of("x").error == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "rows"),
    [
        (acceptance.table_3(CONTINUER, 1), 3),
        (speed.speeds(TRANSLATOR, 0), 6),
        (traces.figure_5(TRANSLATOR), 3),
    ],
    ids=lambda given: getattr(given, "name", str(given)),
)
def test_a_unit_fills_its_rows(lab: Lab, unit: Any, rows: int) -> None:
    found = unit.run(lab)
    assert len(found.rows) == rows and json.dumps([row.to_json() for row in found.rows])
    for row in found.rows:
        assert "alpha" not in row.ours or 0 <= row.ours["alpha"] <= 1
        assert row.ours.get("same text", "2 of 2") == "2 of 2"


def test_an_inflated_target_is_left_out_without_a_gpu(lab: Lab) -> None:
    [row] = speed.speeds(INFLATED, 0).run(replace(lab, device="cpu")).rows
    assert not row.ours and "needs a GPU" in row.why


def test_an_inflated_target_on_a_gpu(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gamma beside plain decoding; it is let go afterwards; and a GPU that is too small is a reason, no crash."""
    loaded = load(str(library.save_llama(tmp_path)), "cpu", "float32")
    made: list[int] = []

    def inflated(*given: Any) -> Inflated:
        made.append(1)
        if len(made) > 1:
            raise torch.cuda.OutOfMemoryError("tried to allocate 16 GiB")
        return Inflated(loaded, Copying(), "")  # type: ignore[arg-type]

    monkeypatch.setattr("outrider.bench.pair.inflated", inflated)
    monkeypatch.setattr(Lab, "gpu", property(lambda lab: True))
    monkeypatch.setattr(Lab, "prompts", lambda lab, target: ["the end", "a"])
    monkeypatch.setattr(Lab, "run_costs", lambda *given: TargetCosts(1, 0.01, {1: 1.0, 8: 1.2}, 1))
    rows = speed.speeds(INFLATED, 0).run(lab).rows
    assert [(row.about["our draft"], row.about["gamma"]) for row in rows] == [("head", gamma) for gamma in speed.GAMMAS]
    assert all(row.ours["same text"] == "2 of 2" for row in rows)
    [refused] = speed.speeds(INFLATED, 1).run(lab).rows
    assert "too little memory" in refused.why and not refused.ours


def test_the_command(outrider: Command, tmp_path: Path) -> None:
    file, page = tmp_path / "results.jsonl", tmp_path / "papers.md"
    words = ["paper", "--only", "table1,figure3", "--out", str(file)]
    said = outrider(*words, "--page", str(page))
    assert said.code == 0 and "Table 1" in said.out and "6.86" in said.out
    assert "| 0.9 | 10 | 1.6 | 1.6 | 6.86 | 6.86 |" in page.read_text()
    again = outrider(*words, "--json")
    figures = tmp_path / "drawn" / "here"
    assert outrider(*words, "--page", str(page), "--figures", str(figures)).code == 0
    assert "![Guesses that gain most](drawn/here/figure3-1.svg)" in page.read_text()
    assert "<svg" in (figures / "figure3-1.svg").read_text()
    assert "is a file; name a directory" in outrider(*words, "--figures", str(page)).err
    assert "no such file or directory" in outrider(*words, "--data", str(tmp_path / "none")).err
    assert len(json.loads(again.out)["records"]) == 2 and len(file.read_text().splitlines()) == 2
    assert "sampling" in outrider("paper", "--list").out
    before = file.read_bytes()
    for wrong, says in (
        (["--dtype", "float8"], "dtype must be auto, float32"),
        (["--device", "warp"], "device 'warp' is not usable here"),
        (["--seed", str(2**64)], "seed must be None or a whole number of 64 bits"),
    ):  # formulas need none of them, and such a run was a success
        refused = outrider(*words, *wrong)
        assert refused.code == 2 and says in refused.err and file.read_bytes() == before, refused.err
    assert "no such experiment; did you mean table" in outrider("paper", "--only", "table99", "--out", str(file)).err
    assert "no such experiment; there are table1, " in outrider("paper", "--only", "nonsense", "--out", str(file)).err
    whole = file.read_bytes()
    assert "name another file" in outrider(*words, "--page", str(file)).err and file.read_bytes() == whole
    file.write_text("{}\n")
    assert "line 1: not written by" in outrider(*words).err

"""The drafter of a head: what is loaded and prepared when, and what a guess is said to cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import cpus
import tiny
from outrider.core.model_facts import ModelFacts
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.core.traits import declared_cost
from outrider.drafters import Copying, Mixture
from outrider.drafters.head import Head, HeadConfig, HeadDrafter, choice
from outrider.drafters.head.backends.torch_backend import LazyTorchBackend
from outrider.drafters.head.session import HeadSession
from outrider.errors import BadOption
from outrider.models.transformers.model import HuggingFaceModel
from outrider.planning.policies import Setting
from outrider.runtime import cpu

pytestmark = pytest.mark.cpu_paths


def test_a_loaded_head_is_mapped_as_it_was_saved(tmp_path: Path) -> None:
    """Catches a draft that is widened when it is loaded, and one that changes, or ends the process, as a file does."""
    torch.manual_seed(0)
    one, two = (HeadDrafter(Head(HeadConfig("feature", 16, 32, 1)), torch.arange(10)) for _ in range(2))
    one.save(tmp_path)
    loaded = HeadDrafter.load(tmp_path).beside(ModelFacts(10, weights_read=1000))
    assert loaded.gamma and loaded.plans and "head" not in vars(loaded), "widened only for those who ask for it"
    assert {weight.dtype for weight in loaded.saved.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in loaded.head.parameters()} == {torch.float32} and one.head is one.saved
    two.save(tmp_path)
    expected = one.saved.join.weight.to(torch.bfloat16)
    assert torch.equal(loaded.saved.join.weight, expected) and torch.equal(loaded.head.join.weight, expected.float())
    assert torch.equal(HeadDrafter.load(tmp_path).saved.join.weight, two.saved.join.weight.to(torch.bfloat16))


def test_nothing_is_made_ready_for_several_rows() -> None:
    """A question about kernels copied the head and packed the output layer: 87 MB that one row never reads."""
    torch.manual_seed(0)
    target = HuggingFaceModel(tiny.build("llama"))
    size = target.hidden_size
    assert size is not None
    head = Head(HeadConfig("feature", size, 2 * size, 1, heads=(2, 1)))
    drafter = HeadDrafter(head, torch.arange(10), floor=0.0)
    shape = Shape(96, 5, chunk=4)
    session = target.start(1, shape)
    drafting = drafter.start(1, shape, session)
    for part in (session, drafting):
        part.admit(0, [3, 9, 4])
    session.score(torch.zeros((1, 0), dtype=torch.int64))
    for part in (session, drafting):
        part.commit(torch.tensor([[5]]), torch.tensor([1]))
    for temperature in (0.0, 1.0):
        noise, at = Noise(torch.zeros(1, dtype=torch.int64)), torch.zeros((1, 4), dtype=torch.int64)
        assert drafting.propose(3, Sampling(temperature=temperature), noise, at).tokens.shape == (1, 3)
    assert list(drafter.prepared(session).weights) == [choice.choose_for_one_row().backend]


def test_a_guess_for_several_rows_costs_what_torch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head declared what its compiled code takes for one row, and torch drafts for several: three times as long."""
    monkeypatch.setattr(choice, "numba_error", lambda: None)
    head = HeadDrafter(Head(HeadConfig("feature", 16, 32, 1)), torch.arange(10))
    assert declared_cost(head) == declared_cost(head, 4) == HeadDrafter.cost, "nothing is known of the target"
    with cpu.using(cpus.N1):
        head.beside(ModelFacts(10, weights_read=100_000))
    assert declared_cost(head, 1) == head.cost and declared_cost(head, 4) > 1.5 * head.cost
    assert declared_cost(head, 4) == declared_cost(head, 8)
    mixture = Mixture(Copying(), head)
    setting = Setting(4, 4, mixture, None)
    assert setting.declared.drafts(1) - setting.declared.drafts(0) == pytest.approx(declared_cost(head, 4))
    assert declared_cost(Mixture(Copying(), head, cost=0.2), 4) == 0.2
    with cpu.using(cpus.A72):
        head.beside(ModelFacts(10, weights_read=100_000))
    assert declared_cost(head, 1) == declared_cost(head, 4), "numpy for one row, torch for several"


def test_a_guess_costs_more_beside_quicker_runs_and_where_it_is_drawn() -> None:
    """Packed weights halve the target's runs, not the head's: with a seed, where no clock counts, guesses were taken to
    cost a twelfth of a run that cost a third."""
    head = HeadDrafter(Head(HeadConfig("feature", 16, 32, 1)), torch.arange(10))
    costs = {}
    for weights in ("float32", "bfloat16", "Q8_0", "Q4_1", "Q4_K"):
        head.beside(ModelFacts(10, weights_read=100_000, weight_format=weights))
        costs[weights] = declared_cost(head)
        assert declared_cost(head, 1, True) == pytest.approx(1.5 * costs[weights])
        assert declared_cost(head, 4, True) >= declared_cost(head, 4)
    assert sorted(costs, key=costs.__getitem__) == ["float32", "bfloat16", "Q8_0", "Q4_1", "Q4_K"]
    assert costs["Q4_1"] == costs["Q4_K"] == pytest.approx(costs["bfloat16"] / 0.51875)


@pytest.mark.parametrize("tokens", [[], [-3, 1, 2], [1, 2, 500]])
def test_tokens_that_the_target_does_not_have_are_refused(tokens: list[int]) -> None:
    """Compiled code looks them up in the target's embeddings, and checks no bounds."""
    target = HuggingFaceModel(tiny.build("llama"))
    assert target.hidden_size is not None
    drafter = HeadDrafter(Head(HeadConfig("feature", target.hidden_size, 16, 1)), torch.tensor(tokens).long())
    shape = Shape(96, 5, chunk=4)
    with pytest.raises(BadOption, match="knows tokens .* use the draft with the target it was trained for"):
        drafter.start(1, shape, target.start(1, shape))


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BadOption, match="3 heads of queries and 2 of keys do not divide a size of 48"):
        HeadConfig("feature", 48, 64, 1, heads=(3, 2))


def test_several_rows_on_a_cpu_read_each_prompt_by_itself() -> None:
    """Pieces as wide as the batch, which a GPU does not feel, would make a CPU read every prompt once for every row."""
    torch.manual_seed(0)
    rows = choice.FEW_ROWS + 1
    target = HuggingFaceModel(tiny.build("llama"))
    assert target.hidden_size is not None
    head = Head(HeadConfig("feature", target.hidden_size, 16, 1, heads=(2, 1)))
    session = target.start(rows, shape := Shape(96, 5, chunk=4))
    drafting = HeadDrafter(head, torch.arange(10), floor=0.0).start(rows, shape, session)
    assert isinstance(drafting, HeadSession) and isinstance(drafting.backend, LazyTorchBackend)
    read, shapes = drafting.backend._read, []
    drafting.backend._read = lambda *given: (shapes.append(tuple(given[2].shape)), read(*given))[1]  # type: ignore[method-assign]
    for row in range(rows):
        for part in (session, drafting):
            part.admit(row, [3, 9, 4, 5, 7])
    session.score(torch.zeros((rows, 0), dtype=torch.int64))
    noise, at = Noise(torch.zeros(rows, dtype=torch.int64)), session.context.positions(4)
    drafting.propose(3, Sampling(), noise, at)
    assert shapes[:rows] == [(1, 4)] * rows

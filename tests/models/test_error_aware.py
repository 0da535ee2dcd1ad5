"""Four bits by what changes outputs least: better outputs than the nearest weights give, and nothing else changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

pytest.importorskip("numba")

import library
import tiny
from outrider.errors import ModelCorrupt
from outrider.kernels.numba.packed_formats import QuantisedRows
from outrider.models.engine import error_aware, packed_weights, quantised
from outrider.models.transformers import calibration


def _values(rows: QuantisedRows, inputs: int) -> Tensor:
    assert rows.minima is not None
    whole = torch.from_numpy(rows.whole.astype(np.float32)).view(len(rows.whole), -1, 32)
    scales, minima = (torch.from_numpy(part.astype(np.float32))[..., None] for part in (rows.scales, rows.minima))
    return (whole * scales + minima).flatten(1)[:, :inputs]


@pytest.mark.parametrize("shape", [(24, 96), (16, 200)])
def test_outputs_are_nearer_than_those_of_the_nearest_weights(shape: tuple[int, int]) -> None:
    """Catches errors that are not carried on, or to columns that are done: with inputs that go together as those of a
    model do, outputs were off by as much as with each weight rounded for itself."""
    torch.manual_seed(0)
    weight, mixed = torch.randn(shape), torch.randn(12, shape[1])
    inputs = torch.randn(400, 12) @ mixed + 0.1 * torch.randn(400, shape[1])
    found = error_aware.in_four_bits(weight, error_aware.inputs_factor(inputs.T @ inputs))
    nearest, aware = _values(quantised.in_four_bits(weight), shape[1]), _values(found, shape[1])
    lost = [float((inputs @ (rounded - weight).T).norm()) for rounded in (nearest, aware)]
    assert lost[1] < 0.6 * lost[0]
    assert (aware - weight).norm() > (nearest - weight).norm(), "weights themselves are not nearer"


def test_inputs_that_say_nothing_leave_nearest_weights() -> None:
    """Catches a division by nothing where an input was always zero, and steps that are not those of the nearest."""
    torch.manual_seed(0)
    weight = torch.randn(16, 64)
    alone = error_aware.in_four_bits(weight, error_aware.inputs_factor(torch.zeros(64, 64)))
    for one, two in zip(vars(alone).values(), vars(quantised.in_four_bits(weight)).values(), strict=True):
        assert one is two or np.array_equal(one, two)


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3"])
def test_every_matrix_of_every_layer(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a matrix that is left out or rounded by the inputs of another, and rows of joined matrices mixed up."""
    folder, config = _saved(family, tmp_path)
    seen: dict[str, Tensor] = {}
    run = calibration.run

    def told(source: Path, modules: list[str], take: calibration.Take) -> None:
        run(source, modules, lambda name, moments: (seen.update({name: moments.clone()}), take(name, moments))[1])

    monkeypatch.setattr(calibration, "run", told)
    found = error_aware.quantised_layers(folder, config)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    linear = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    linear.pop("lm_head.weight")
    assert found.keys() == linear.keys()
    given: dict[str, Tensor] = {}
    for name in seen:
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, inputs, name=name: given.update({name: inputs[0].flatten(0, -2)})
        )
    model(calibration.read_tokens(folder, config))
    for name, moments in seen.items():
        assert torch.allclose(moments, given[name].T @ given[name], rtol=1e-4, atol=1e-4)
    tensors = packed_weights.Quantised(folder, 4, packed_weights.PartNames.of(config), found)
    for part in ("q_proj", "v_proj", "o_proj"):
        name = f"model.layers.1.self_attn.{part}.weight"
        place = packed_weights.PartNames.of(config)(name)
        rows = np.arange(16)
        chosen = packed_weights.panels(packed_weights.some_rows(found[place.name], rows + place.first))
        assert np.array_equal(tensors.panels(name, rows), chosen)


def test_a_damaged_checkpoint_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are no numbers ended in an error of linear algebra."""
    folder, config = _saved("llama", tmp_path)
    broken = torch.full((4, 4), torch.nan)
    monkeypatch.setattr(calibration, "run", lambda source, modules, take: take(modules[0], broken))
    with pytest.raises(ModelCorrupt, match=r"self_attn.q_proj is given no numbers; the checkpoint is damaged"):
        error_aware.quantised_layers(folder, config)
    with pytest.raises(ModelCorrupt, match="not finite"):
        error_aware.in_four_bits(broken, torch.eye(4))


def test_short_memory_rounds_weight_by_weight_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that fits only in four bits could be quantised before text was read for it, and still can."""
    folder, config = _saved("llama", tmp_path)
    monkeypatch.setattr(error_aware, "available_bytes", lambda: 1000)
    with pytest.warns(
        UserWarning, match=r"weights='int4': llama is rounded weight by weight, .* 0\.0 GB are available"
    ):
        assert error_aware.quantised_layers(folder, config) == {}


def _saved(family: str, folder: Path) -> tuple[Path, AutoConfig]:
    if family == "llama":  # with a tokenizer
        saved = library.save_llama(folder / "llama")
    else:
        saved = folder / family
        tiny.build(family).save_pretrained(saved)
    return saved, AutoConfig.from_pretrained(saved)

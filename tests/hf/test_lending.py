"""The caller's model: used, and left as it was found."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from calls import batch, call

import tiny
from outrider.errors import CriterionError, OutriderError
from outrider.hf.lent import _capturable, lent
from outrider.models.transformers.engine import TransformersEngine
from outrider.models.transformers.watch import watch_last_layer


def state(model: torch.nn.Module) -> list[Any]:
    """Everything of a model that wrapping it may change, module by module."""
    return [
        (name, module.training, sorted(module.__dict__), len(module._forward_pre_hooks), len(module._forward_hooks))
        for name, module in model.named_modules()
    ]


def mixed(family: str, seed: int = 0) -> Any:
    """A model in training whose first layers are frozen."""
    model = tiny.build(family, seed).train()
    next(model.children()).eval()
    return model


@pytest.mark.parametrize("family", ["llama", "bloom", "opt", "t5", "bart"])
@pytest.mark.parametrize("fails", [False, True])
def test_as_it_was(family: str, fails: bool) -> None:
    """An error left the caller's model in eval mode with a hook on it, success left the hook, and patched methods."""
    model = mixed(family)
    before = state(model)

    def fail(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if fails and ids.shape[1] > batch(family)["input_ids"].shape[1] + 1:
            raise RuntimeError("stop here")
        return torch.zeros(len(ids), dtype=torch.bool)

    try:
        call(model, batch(family, rows=1), max_new_tokens=12, stopping_criteria=[fail])
    except CriterionError as error:
        assert fails and "stop here" in str(error)
    assert state(model) == before


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 3, "num_beams": 2}])
def test_a_draft_as_it_was(options: dict[str, Any]) -> None:
    """A draft= model in training mode was left in eval mode, even on success."""
    draft = mixed("llama", 1)
    before = state(draft)
    try:
        call(tiny.build("llama"), batch("llama"), **{"max_new_tokens": 6, **options}, draft=draft)
    except OutriderError:
        assert options
    assert state(draft) == before


def test_a_watched_layer_as_it_was() -> None:
    """A draft that reads what the last layer gives left a hook on it, which kept the caller's next activations."""
    model = tiny.build("llama")
    before = state(model)
    with lent(model):
        assert watch_last_layer(model, model.config.num_hidden_layers) and state(model) != before
    assert state(model) == before


def test_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call wrapped and probed the model anew; one that was cast is another one."""
    probes = []
    probe = TransformersEngine._probe
    monkeypatch.setattr(TransformersEngine, "_probe", lambda self, *kind: probes.append(1) or probe(self, *kind))
    model = tiny.build("llama")
    for _ in range(3):
        call(model, batch("llama"), max_new_tokens=3)
    assert len(probes) == 1
    call(model.to(torch.float64), batch("llama"), max_new_tokens=3)
    assert len(probes) == 2


def test_not_kept_alive() -> None:
    """What is remembered of a model must not keep it in memory."""
    model, draft = tiny.build("llama"), tiny.build("llama", 1)
    call(model, batch("llama"), max_new_tokens=3, draft=draft)
    gone = [weakref.ref(model), weakref.ref(draft)]
    del model, draft
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_two_at_once() -> None:
    """The first of two calls to end must not put the model back under the second."""
    model = tiny.build("llama").train()
    with lent(model):
        call(model, batch("llama"), max_new_tokens=2)
        assert not model.training
    assert model.training


def replaced(model: Any) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def swapped(model: Any) -> None:
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()


def other_layer(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


@pytest.mark.parametrize("change", [replaced, swapped, other_layer])
def test_weights_in_another_place(change: Any) -> None:
    """A recorded step went on reading the freed weights of a model that was moved and back, or loaded anew."""
    model = tiny.build("llama")
    with lent(model) as first:
        pass
    with lent(model) as second:
        assert second is first
    kept = list(model.parameters()), [p.data for p in model.parameters()]  # so that no address is used again
    change(model)
    with lent(model) as third:
        assert third is not first
    del kept


def test_adapters_are_not_recorded() -> None:
    """An adapter is switched on and off without a change of address: a recorded step would not notice."""
    model, gpu = tiny.build("llama"), torch.device("cuda")
    assert _capturable(model, gpu) and not _capturable(model, torch.device("cpu"))
    model._hf_peft_config_loaded = True
    assert not _capturable(model, gpu)
    model._hf_peft_config_loaded = False
    model.model.layers[0].mlp.act_fn = type("Adapter", (torch.nn.SiLU,), {"__module__": "peft.tuners.lora"})()
    assert not _capturable(model, gpu)


@pytest.mark.parametrize(
    ("dtype", "exact", "timed"),
    [(torch.float32, False, True), (torch.bfloat16, False, False), (torch.bfloat16, True, True)],
)
def test_no_clock_where_the_width_decides_the_bits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, exact: bool, timed: bool
) -> None:
    """In bfloat16 the clock chose gamma, gamma the width and the width the bits: equal calls gave two texts."""
    from outrider.planning import policies

    used = []
    start = policies.Auto.start
    monkeypatch.setattr(policies.Auto, "start", lambda self, setting: used.append(self.clock) or start(self, setting))
    call(tiny.build("llama").to(dtype), batch("llama"), max_new_tokens=3, exact=exact)
    assert used and set(used) == {timed}

"""Loads a target that transformers shards over the processes of torchrun: see ``models/parallel.py``."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from outrider.errors import OutriderError, require
from outrider.models import parallel
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine.choice import Kernels
from outrider.models.hub import loading, names
from outrider.models.positions import Positions
from outrider.models.settings import setting
from outrider.models.transformers.model import HuggingFaceModel


def load(name: str, size: int, device: str, dtype: str, trust_remote_code: bool, kernels: Kernels) -> loading.Loaded:
    """The target on rank 0. On every other rank this does not return: it serves rank 0, then ends the process."""
    from transformers import AutoConfig

    parallel.check_size(size)
    if parallel.rank() != 0:
        follow()
    _check_kernels(kernels, size)
    where = torch.device(loading.choose_device(device))
    here = parallel.joined().device
    require(where.type == here.type, f"device {device!r}: transformers shards over {here.type} here; leave device out")
    place = names.directory(name, code=trust_remote_code)  # fetched once, before all ranks read it
    names.unpack(place)
    config, tokenizer = loading.description(place, trust_remote_code=trust_remote_code)
    _check_family(name, AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code), size)
    kind = loading.choose_dtype(dtype, config, here)
    Positions.of(config.get_text_config(decoder=True), kernels.max_length)  # refused before weights are read
    model = parallel.lead(_shard, name, size, kind, trust_remote_code, kernels.max_length)
    return loading.Loaded(name, loading.limited(model, kernels.max_length), tokenizer, kernels)


def follow() -> NoReturn:
    """A rank other than 0: whatever rank 0 loads and runs, this one does, too."""
    parallel.follow(_shard)


def _shard(name: str, size: int, kind: torch.dtype, trust_remote_code: bool, max_length: int | None) -> CheckpointModel:
    """This rank's shard of the model: constant shapes, as transformers runs it."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    place = names.directory(name, code=trust_remote_code)
    options = {"distributed_config": DistributedConfig(tp_size=size), "trust_remote_code": trust_remote_code}
    try:
        model = loading.by_transformers(place, AutoModelForCausalLM, dtype=kind, **options)
    except OutriderError:
        raise
    except Exception as error:
        raise loading.explained(place, error) from error
    return HuggingFaceModel(model.requires_grad_(False), max_length)


def _check_kernels(kernels: Kernels, size: int) -> None:
    given = f"tensor_parallel={size}"
    good = kernels.engine in ("auto", "torch")
    require(good, f"engine {kernels.engine!r} runs a model in one process; with {given} use engine='torch'")
    good = kernels.weights == "full"
    require(good, f"weights={kernels.weights!r} cannot be sharded; leave it out, or leave {given} out")


def _check_family(name: str, config: Any, size: int) -> None:
    """Refuse what transformers would not shard, or shard unevenly."""
    given = f"tensor_parallel={size}"
    require(not config.is_encoder_decoder, f"{given} is for decoder-only models, and {name!r} has an encoder")
    kind = config.model_type
    plan = bool(setting(config.get_text_config(), "base_model_tp_plan"))
    require(plan, f"{given}: transformers has no plan for sharding models of type {kind!r}; leave it out")
    heads = setting(config.get_text_config(), "num_key_value_heads") or config.get_text_config().num_attention_heads
    require(heads % size == 0, f"{given} must divide the {heads} key/value heads of {name!r}")

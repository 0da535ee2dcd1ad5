"""Loads a model and its tokenizer by short name, directory, .gguf file or hub id."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch

from outrider.errors import (
    BadOption,
    DeviceError,
    ModelCorrupt,
    ModelError,
    OutriderError,
    require,
)
from outrider.kernels.packed_linear import pack, warn_of_other_bits
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine.backends import BACKENDS, Asked
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.engine.prepared import prepare
from outrider.models.hub import manifest, names, plain_settings
from outrider.models.hub.making import CacheRefused
from outrider.models.hub.safetensors_files import weight_files
from outrider.models.hub.token_bytes import SAMPLE
from outrider.models.positions import Positions
from outrider.models.settings import setting
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu
from outrider.runtime.cache_dir import cache_dir
from outrider.runtime.files import note_refused
from outrider.runtime.threads import limit_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Loaded:
    """A loaded model: its name as the user gave it, its tokenizer, and how it is run."""

    name: str
    model: CheckpointModel
    tokenizer: PreTrainedTokenizerBase | plain_settings.PlainTokenizer
    kernels: Kernels = Kernels()

    @property
    def transformers_model(self) -> HuggingFaceModel:
        """The model as transformers runs it: what is trained from, and what is built anew in another size."""
        if not isinstance(self.model, HuggingFaceModel):
            raise BadOption(f"{self.name!r} is run by {self.model.facts.engine}; load it with the engine 'torch'")
        return self.model


def load(
    name: str,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    kernels: Kernels = Kernels(),
) -> Loaded:
    """Load by short name, directory, .gguf file or hub id; safetensors weights only."""
    where = torch.device(choose_device(device))
    if where.type == "cpu":
        limit_threads()
    place = names.directory(name, code=trust_remote_code)
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config, tokenizer = description(place, **common)
        Positions.of(config.get_text_config(decoder=True), kernels.max_length)  # refused before weights are read
        kind = choose_dtype(dtype, config, where)
        prepared = _by_engine(name, place, config, kernels, where, kind, settled=dtype != "auto")
        if prepared is not None:
            return Loaded(name, limited(prepared, kernels.max_length), tokenizer, kernels)
        names.unpack(place)
        model = by_transformers(place, _class(config), dtype=kind, **common)
    except OutriderError:
        raise
    except Exception as error:
        raise explained(place, error) from error
    wrapped = HuggingFaceModel(_moved(name, model, where).requires_grad_(False), kernels.max_length)
    if where.type == "cpu":
        warn_of_other_bits(kernels.rows, model.dtype)
    narrow = model.dtype == torch.bfloat16 and cpu.facts().fast_at_bfloat16
    if where.type == "cpu" and (model.dtype == torch.float32 or narrow):  # what the packed kernels were measured for
        from outrider.models.transformers.lean import make_lean

        make_lean(model, kernels.rows, release=kernels.release)
        pack(model, kernels.rows, release=kernels.release, keep=wrapped.unembedding)  # heads read it
    if where.type == "cuda":
        wrapped.fuse()  # no: the family has no fused layers, and runs through its own
        if kernels.weights == "int8":
            from outrider.models.transformers import int8_gpu

            int8_gpu.quantise(wrapped)
    wrapped.find_batch_invariance()
    return Loaded(name, limited(wrapped, kernels.max_length), tokenizer, kernels)


def limited(model: CheckpointModel, max_length: int | None) -> CheckpointModel:
    """A model whose texts end where the caller wants them to at the latest."""
    if max_length is not None:
        model.facts = replace(model.facts, max_length=max_length)
    return model


def by_transformers(place: Path, kind: Any, **options: Any) -> PreTrainedModel:
    """The model by transformers, which fills weights that a checkpoint does not have with random numbers."""
    model: PreTrainedModel
    model, told = kind.from_pretrained(place, use_safetensors=True, output_loading_info=True, **options)
    if missing := sorted(told["missing_keys"]):
        some = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
        raise ModelCorrupt(f"the weights in {place} lack {some}, which config.json asks for; get the model again")
    return model


def description(place: Path, **common: Any) -> tuple[Any, Any]:
    """A model's config and tokenizer."""
    found = plain_settings.description(place)
    if found is not None:
        return found
    from transformers import AutoConfig, AutoTokenizer

    return AutoConfig.from_pretrained(place, **common), AutoTokenizer.from_pretrained(place, **common)


def _size(place: Path) -> int:
    """Bytes of weights."""
    packed = manifest.packed(place)
    files = weight_files(place) or ([packed.require()] if packed else [])
    return sum(file.stat().st_size for file in files)


def _class(config: Any) -> Any:
    # Imported when needed: it brings torch's compiler along, which takes longer to import than a small model to load.
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _by_engine(
    name: str, place: Path, config: Any, kernels: Kernels, where: torch.device, kind: torch.dtype, settled: bool
) -> CheckpointModel | None:
    """The model as its engine runs it; None where that is torch. "auto" goes on where an engine cannot after all."""
    engine = chosen_engine(kernels, config, where, kind, _size(place), settled)
    if kernels.kv_cache_dtype != "auto" and not (engine in BACKENDS and BACKENDS[engine].kv_cache_dtypes):
        raise BadOption(
            f"kv_cache_dtype {kernels.kv_cache_dtype!r} cannot be used: {name!r} is run by {engine}, and only the "
            "engine numba stores keys and values in another format; leave it out"
        )
    if engine == "torch":
        if settled and where.type == "cpu":
            _warn_of_slow(kind, chosen_engine(kernels, config, where, torch.float32, _size(place), settled=False))
        return None
    packed = manifest.packed(place) if engine == "numba" and not settled and kernels.weights == "full" else None
    if packed is None:
        names.unpack(place)
    try:
        run_as = packed.weights if packed else None
        asked = Asked(config, kind, settled, kernels.weights, run_as, kernels.max_length)
        return _prepared(place, engine, asked, kernels)
    except ModelCorrupt:
        raise
    except ModelError as error:
        if kernels.engine != "auto" or kernels.weights != "full":
            raise
        if isinstance(error, CacheRefused):
            note_refused(cache_dir(), f"{name} is run by torch, more slowly than by {engine}")
            return None
        warnings.warn(f"{name!r} is run by torch, not by {engine}: {error}", stacklevel=4)
        return None


def _warn_of_slow(kind: torch.dtype, otherwise: str) -> None:
    """Of a dtype that was asked for and is slow on this CPU; ``otherwise``: the engine there would be without it."""
    if kind not in (torch.bfloat16, torch.float16):
        return
    name, reason = str(kind).removeprefix("torch."), None
    if otherwise != "torch":
        reason = f"only torch computes in {name} here, several times slower than {otherwise} without it"
    elif kind == torch.bfloat16 and not cpu.facts().fast_at_bfloat16:
        reason = "this CPU has no instructions for bfloat16: torch emulates them, slowly, and on some ARM CPUs wrongly"
    if reason:
        warnings.warn(f"dtype {name}: {reason}; leave the dtype out, or choose float32", stacklevel=6)
    # torch says so, too, with a trace of its C++ functions, when it multiplies for the first time.
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed, switching to BLAS")


def _prepared(place: Path, engine: str, asked: Asked, kernels: Kernels) -> CheckpointModel:
    """A model run by an engine from files in the cache, which are written the first time."""
    from outrider.models.engine.model import EngineModel

    backend, config, kv_cache_dtype = BACKENDS[engine], asked.config, kernels.kv_cache_dtype
    prepared = prepare(place, config, backend.layout(backend.weights(asked)))
    if kv_cache_dtype == "auto" and asked.settled and asked.dtype == torch.float32:
        kv_cache_dtype = "float32"
    options: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype} if backend.kv_cache_dtypes else {}
    options |= {"max_length": asked.max_length} if backend.max_lengths else {}
    return EngineModel(backend.open(prepared, config, **options), config, _asked_of_generation(place, config))


def _asked_of_generation(place: Path, config: Any) -> Any:
    if isinstance(config, plain_settings.Settings):
        return plain_settings.Settings(place / "generation_config.json")
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(place)
    except OSError:  # a checkpoint need not have one: then what the config says counts
        return GenerationConfig.from_model_config(config)


def _moved(name: str, model: PreTrainedModel, where: torch.device) -> PreTrainedModel:
    try:
        return model.to(where)
    except torch.cuda.OutOfMemoryError as error:
        size = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**30
        raise DeviceError(
            f"no GPU memory for {name!r}, whose weights are {size:.1f} GiB in {model.dtype}; end other programs on the "
            "GPU, or use a smaller dtype, a smaller model, or device='cpu'"
        ) from error


def explained(place: Path, error: Exception) -> ModelError:
    """Turn what transformers raises into one line with a remedy."""
    reason = " ".join(str(error).split())[:300]
    if any(frame.f_globals.get("__name__", "").startswith("numba.") for frame, _ in walk_tb(error.__traceback__)):
        said = f"code could not be compiled or kept in {cache_dir()} ({type(error).__name__}: {reason})"
        return ModelError(f"{said}; try again, and if that fails, remove the directories compiled-* there")
    if "mismatched" in reason:
        return ModelCorrupt(f"config.json in {place} does not fit the weights beside it; get the model again")
    if "safetensors" in reason.lower() or "header" in reason.lower() or isinstance(error, EOFError):
        return ModelCorrupt(f"the weights in {place} cannot be read ({reason}); fetch or convert the model again")
    if "tokenizer" in reason.lower():
        return ModelError(f"the tokenizer in {place} cannot be loaded ({reason[:120]}); copy tokenizer.json there")
    remedy = "get the model again, or try whether transformers loads it"
    return ModelError(f"the model in {place} cannot be loaded ({type(error).__name__}: {reason}); {remedy}")


def choose_device(device: str) -> str:
    require(isinstance(device, str), f"device must be 'auto', 'cpu' or 'cuda', got {device!r}", BadOption)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    require(device != "meta", "device 'meta' holds no numbers, so nothing runs on it; use 'auto' or 'cpu'", BadOption)
    try:
        torch.zeros(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        remedy = (
            "a GPU is device='cuda'" if str(device).lower().startswith(("gpu", "nvidia")) else "use 'auto' or 'cpu'"
        )
        raise BadOption(f"device {device!r} is not usable here ({reason}); {remedy}") from error
    return device


def check_dtype(dtype: str) -> None:
    require(dtype in ("auto", *DTYPES), f"dtype must be auto, {', '.join(DTYPES)}; got {dtype!r}")


def choose_dtype(dtype: str, config: Any, device: torch.device) -> torch.dtype:
    """What the checkpoint was saved in where the device is fast at it, float32 otherwise."""
    check_dtype(dtype)
    if dtype != "auto":
        return DTYPES[dtype]
    saved = setting(config, "dtype") or torch.float32
    if device.type == "cpu" and not (saved == torch.bfloat16 and cpu.facts().fast_at_bfloat16):
        return torch.float32
    return saved if isinstance(saved, torch.dtype) else torch.float32


def same_tokens(target: Loaded, draft: Loaded) -> bool:
    """Whether the same text means the same tokens to both; rows of padding in a vocabulary do not matter."""
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    by_id = {v: k for k, v in ours.items()}
    differs = any(ours[t] != theirs[t] for t in ours.keys() & theirs.keys())
    differs = differs or any(by_id.get(i, t) != t for t, i in theirs.items())
    return not differs and target.tokenizer.encode(SAMPLE) == draft.tokenizer.encode(SAMPLE)


def check_same_kind(target: Loaded, draft: str, encodes: bool) -> None:
    """An encoder's output is nothing to a model without one, and a source nothing to a model that reads none."""
    kinds = {True: "an encoder-decoder", False: "decoder-only"}
    if encodes != target.model.encoder_decoder:
        raise BadOption(
            f"draft {draft!r} is {kinds[encodes]} and target {target.name!r} {kinds[not encodes]}; both must be of one "
            "kind: leave the draft out, or give 'copy'"
        )

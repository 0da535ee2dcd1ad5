"""Models that cannot be loaded, or do not fit together: one line each, with the remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import library
import outrider
from outrider.errors import (
    BadOption,
    DeviceError,
    ModelCorrupt,
    ModelError,
    ModelNotFound,
    OutriderError,
)
from outrider.models.hub.safetensors_files import INDEX


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    library.save_llama(root / "target")
    library.save_t5(root / "t5")
    return root


def damaged(folders: Path, tmp_path: Path, damage: Callable[[Path], object]) -> str:
    folder = tmp_path / "damaged"
    shutil.copytree(folders / "target", folder)
    damage(folder)
    return str(folder)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def unknown_family(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_family"}))


def looped(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")


def foreign(folder: Path) -> None:
    save_file({"x": torch.ones(3)}, folder / "model.safetensors", metadata={"format": "pt"})


def more_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def wider(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], type[OutriderError]]] = {
    "truncated weights": (cut, ModelCorrupt),
    "garbage weights": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 5000), ModelCorrupt),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), ModelCorrupt),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ModelError),
    "pickled weights": (pickled, ModelError),
    "no config": (lambda f: (f / "config.json").unlink(), ModelNotFound),
    "garbage config": (lambda f: (f / "config.json").write_text("{"), ModelError),
    "unknown family": (unknown_family, ModelError),
    "weights of another model": (foreign, ModelCorrupt),
    "fewer layers than the config says": (more_layers, ModelCorrupt),
    "another width than the config says": (wider, ModelCorrupt),
    "weights that are a loop": (looped, ModelCorrupt),
    "a list for a config": (lambda f: (f / "config.json").write_text("[]"), ModelCorrupt),
    "bytes for a config": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), ModelCorrupt),
    "a list for an index": (lambda f: (f / INDEX).write_text("[]"), ModelCorrupt),
    "an index without names": (lambda f: (f / INDEX).write_text("{}"), ModelCorrupt),
    "garbage generation config": (lambda f: (f / "generation_config.json").write_text("{"), ModelCorrupt),
    "no tokenizer": (no_tokenizer, ModelError),
    "a list for tokenizer settings": (lambda f: (f / "tokenizer_config.json").write_text("[]"), ModelCorrupt),
    "garbage tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), ModelError),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_directories(folders: Path, tmp_path: Path, name: str) -> None:
    """Catches a stack trace from the depths of a library, or random weights where a file was damaged."""
    damage, kind = DAMAGE[name]
    folder = damaged(folders, tmp_path, damage)
    with pytest.raises(kind) as caught:
        outrider.load(folder)
    assert "\n" not in str(caught.value)
    assert folder in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "/" + "x" * 5000, "~no-such-user/model", "a\0b", "what is this?"])
def test_impossible_names(name: str) -> None:
    """Catches what the system says about a name, raw: too long, no such user, a null byte."""
    with pytest.raises(ModelNotFound) as caught:
        outrider.load(name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_permission_denied(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", denied)
    with pytest.raises(ModelNotFound, match="cannot be looked at .Permission denied"):
        outrider.load(str(folders / "target"))


@pytest.mark.parametrize("name", ["/no/such/model", "./missing.gguf", "~/nowhere/at/all"])
def test_missing(name: str) -> None:
    """Catches a missing path sent to the hub."""
    with pytest.raises(ModelNotFound, match="no such file or directory"):
        outrider.load(name)


def test_nearly_known() -> None:
    """Catches a typo that ends in a download."""
    with pytest.raises(ModelNotFound, match="did you mean smollm2-135m"):
        outrider.load("smolm2-135m")


def test_kinds_must_match(folders: Path) -> None:
    """Catches a decoder-only draft for an encoder-decoder target, which would never see the source."""
    for target, draft in (("target", "t5"), ("t5", "target")):
        with pytest.raises(BadOption, match="both must be of one kind"):
            outrider.load(str(folders / target), draft=str(folders / draft))


def test_missing_draft(folders: Path) -> None:
    """Catches a draft that is silently left out because it could not be found."""
    with pytest.raises(ModelNotFound, match="no such file or directory"):
        outrider.load(str(folders / "target"), draft="/no/such/draft")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "float8"}, "dtype must be auto, float32"),
        ({"device": "warp"}, "device 'warp' is not usable here"),
        ({"device": "gpu"}, "device 'gpu' is not usable here .* a GPU is device='cuda'"),
        ({"device": 2.5}, "device must be 'auto', 'cpu' or 'cuda', got 2.5"),
        ({"device": None}, "device must be 'auto', 'cpu' or 'cuda', got None"),
        ({"draft": 5}, "draft must be a name or have `name` and `start`"),
        ({"width": 0}, "width must be a whole number of at least 1"),
    ],
)
def test_bad_options(folders: Path, options: dict[str, object], says: str) -> None:
    """Catches an option that fails later, far from where it was given."""
    with pytest.raises(BadOption, match=says):
        outrider.load(str(folders / "target"), **options)  # type: ignore[arg-type]


def test_dtype(folders: Path) -> None:
    """Catches a dtype that is accepted and ignored."""
    for dtype in ("float32", "bfloat16", "float64"):
        assert outrider.load(str(folders / "target"), dtype=dtype).target.model.dtype == getattr(torch, dtype)


def test_a_gpu_too_small_for_the_weights(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, *ignored: object) -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr("transformers.PreTrainedModel.to", full)
    with pytest.raises(DeviceError, match=r"no GPU memory for .*target.*GiB in torch.float32; .*device='cpu'"):
        outrider.load(str(folders / "target"), draft=None, device="cpu")


def test_a_compiler_that_fails_is_no_damaged_model(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba's "no compiled object yet", of its files on disk, was told as a model that is to be fetched again."""
    numba: dict[str, Any] = {"__name__": "numba.core.codegen"}
    exec("def failing(*_, **__):\n    raise RuntimeError('no compiled object yet for <Library header>')", numba)
    monkeypatch.setattr("outrider.models.hub.loading.description", numba["failing"])
    with pytest.raises(ModelError, match=r"code could not be compiled or kept in .*no compiled object yet.*; try") as e:
        outrider.load(str(folders / "target"))
    assert not isinstance(e.value, ModelCorrupt) and str(folders) not in str(e.value)


def test_importing_is_light() -> None:
    """Catches `import outrider` that pulls in torch or transformers before they are needed."""
    import subprocess
    import sys

    code = "import sys, outrider; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The images example, trained for three steps: both modes give images, and Gumbel coupling the same ones."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from outrider.models.transformers.model import HuggingFaceModel
from outrider.testing import check_drafter

EXAMPLE = Path(__file__).parents[2] / "examples" / "digit_images.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    spec = spec_from_file_location("digit_images", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["digit_images"] = module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_it_runs(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an example that no longer fits the library: it asserts equality with plain decoding by itself."""
    monkeypatch.setattr(example, "TARGET", example.Size(2, 16, 2))
    monkeypatch.setattr(example, "DRAFT", example.Size(1, 16, 2))
    example.main(["--out", str(tmp_path), "--steps", "3", "--images", "1"])
    shown = capsys.readouterr().out
    assert "neighbours>one layer" in shown and "as in plain decoding" in shown
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(example, "train", None)  # what is trained is used again
    assert isinstance(example.trained(tmp_path / "target", example.TARGET, None, 1.0, None), HuggingFaceModel)


def test_its_drafter_keeps_the_contract(example: ModuleType) -> None:
    """Catches guesses that look at pixels not drawn yet, or break off at the edge of the image."""
    images = example.load_images()
    assert tuple(images.shape) == (1797, 65)
    assert int(images[:, 1:].max()) < example.GREYS <= int(images[:, 0].min())
    model = HuggingFaceModel(example.train(example.Size(1, 16, 2), images, 0.0, steps=1))
    check_drafter(example.Neighbours(images), model)

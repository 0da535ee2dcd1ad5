"""What a process imports before it decodes: start-up is mostly imports, and one careless line doubles it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

import tiny_gguf
from outrider.models import hub, loading

HEAVY = {
    "import outrider": ("torch", "transformers", "numpy", "rich", "typer"),
    "import outrider.cli.main": ("torch", "transformers", "numpy", "matplotlib"),
    "import outrider; outrider.load": (
        "torch._dynamo", "torch._inductor.compile_fx", "transformers.modeling_utils", "onnx", "matplotlib",
        "outrider.training",
    ),
}  # fmt: skip


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    shown = f"{code}\nimport sys; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return list(eval(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("code", "heavy"), HEAVY.items(), ids=list(HEAVY))
def test_nothing_heavy_is_imported(code: str, heavy: tuple[str, ...]) -> None:
    """torch.compile in the body of a module brought the whole compiler in: 1.5 s for every process."""
    assert not imported(code, heavy)


def test_onnxruntime_decodes_without_transformers_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing them, and what they bring along, took two of seven seconds from the start to the first token."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    target = hub.pull(str(tiny_gguf.write_gguf(tmp_path / "tiny.gguf")))
    code = f"import outrider; llm = outrider.load({str(target)!r}, 'copy', 'cpu', engine='onnxruntime')"
    code += "; llm.generate('hello', max_new_tokens=4, temperature=1.0, top_p=0.9)"
    assert not imported(code, ("transformers.models.auto", "transformers.modeling_utils", "torch._dynamo", "sympy"))


def test_a_description_without_its_classes_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a setting that only transformers' class for it knows, and a directory of somebody else's read so."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    target = hub.pull(str(tiny_gguf.write_gguf(tmp_path / "tiny.gguf")))
    quick, words = loading.description(target)
    full, theirs = AutoConfig.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    assert type(quick) is not type(full) and type(words) is type(theirs)
    asked = {"model_type", "is_encoder_decoder", "dtype", "layer_types", "sliding_window", "eos_token_id"}
    for name in asked | loading._LLAMA:
        assert getattr(quick, name, None) == getattr(full, name, None), name
    assert quick.get_text_config(decoder=True).hidden_size == full.hidden_size
    assert words.encode("hello  there") == theirs.encode("hello  there") and words.eos_token_id == theirs.eos_token_id
    assert words.chat_template == theirs.chat_template and words.all_special_ids == theirs.all_special_ids
    (target / hub.MANIFEST).unlink()
    assert type(loading.description(target)[0]) is type(full)

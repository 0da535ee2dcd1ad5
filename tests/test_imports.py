"""What a process imports before it decodes: start-up is mostly imports, and one careless line doubles it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

import cpus
import outrider
import tiny_gguf
from caches import link_compiled
from outrider.errors import ModelNotFound
from outrider.models.hub import loading, names, plain_settings
from outrider.models.hub.manifest import MANIFEST
from outrider.runtime import cpu
from outrider.runtime.cpu import CpuFacts
from outrider.runtime.gc_pause import gc_paused

HEAVY = {
    "import outrider": ("torch", "transformers", "numpy", "rich", "typer"),
    "import outrider.cli.main": ("torch", "transformers", "numpy", "matplotlib"),
    "import outrider; outrider.load": (
        "transformers", "huggingface_hub", "sympy", "torch._dynamo", "torch._inductor.compile_fx", "numba",
        "matplotlib", "outrider.training",
    ),
}  # fmt: skip


with_fma = pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication")


@pytest.fixture
def converted(tmp_path: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that was converted here, large enough for the compiled engine."""
    link_compiled(session_cache, tmp_path / "cache")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return names.pull(str(tiny_gguf.write_gguf(tmp_path / "tiny.gguf", {"": "Q8_0"})))


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    shown = f"{code}\nimport sys; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return list(eval(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("code", "heavy"), HEAVY.items(), ids=list(HEAVY))
def test_nothing_heavy_is_imported(code: str, heavy: tuple[str, ...]) -> None:
    """torch.compile in the body of a module brought the whole compiler in: 1.5 s for every process."""
    assert not imported(code, heavy)


DECODING = ("transformers", "huggingface_hub", "sympy", "torch._dynamo", "matplotlib")


@with_fma
def test_the_engine_decodes_without_transformers(converted: Path) -> None:
    """Importing it, and what it brings along, took three of seven seconds from the start to the first token."""
    code = f"import outrider; llm = outrider.load({str(converted)!r}, 'copy', 'cpu', engine='numba')"
    code += "; llm.generate('hello', max_new_tokens=4, temperature=1.0, top_p=0.9)"
    races = "outrider.kernels.numba.race"  # where it is not loaded, tokens are drawn by numpy, which takes longer
    assert imported(code, (*DECODING, races)) == [races]


@pytest.mark.slow
def test_the_default_model_decodes_without_transformers() -> None:
    """With the engine and the draft that are its own."""
    pytest.importorskip("numba")
    try:
        names.resolve("smollm2-135m", pull=False)
    except ModelNotFound as error:
        pytest.skip(str(error))
    code = "import outrider; llm = outrider.load('smollm2-135m', device='cpu'); llm.generate('hello', max_new_tokens=4)"
    assert not imported(code, DECODING)


def test_a_description_without_transformers_is_the_same(converted: Path) -> None:
    """Catches a setting that only transformers' class for it knows, and a directory of somebody else's read so."""
    quick, _ = loading.description(converted)
    full = AutoConfig.from_pretrained(converted)
    assert isinstance(quick, plain_settings.Settings)
    asked = {"model_type", "is_encoder_decoder", "dtype", "layer_types", "sliding_window", "eos_token_id"}
    for name in asked | plain_settings.LLAMA:
        assert getattr(quick, name, None) == getattr(full, name, None), name
    assert quick.get_text_config(decoder=True).hidden_size == full.hidden_size
    (converted / MANIFEST).unlink()
    assert type(loading.description(converted)[0]) is type(full)


TEXTS = ("hello  there", "", " 12 34\n\tx", "<|im_start|>user\nhe<|im_end|>", "naïve ☃ 雪", "  ll")


def test_a_tokenizer_without_transformers_is_the_same(converted: Path) -> None:
    """Catches special tokens that are split, digits that are not, spaces that are cleaned away."""
    _, quick = loading.description(converted)
    full = AutoTokenizer.from_pretrained(converted)
    assert isinstance(quick, plain_settings.PlainTokenizer) and not isinstance(full, plain_settings.PlainTokenizer)
    for text in TEXTS:
        for special in (True, False):
            ids = quick.encode(text, add_special_tokens=special)
            assert ids == full.encode(text, add_special_tokens=special)
            assert quick.decode(ids, skip_special_tokens=special) == full.decode(ids, skip_special_tokens=special)
    assert quick.get_vocab() == full.get_vocab()
    # What else is asked of it transformers' own answers.
    assert quick.chat_template == full.chat_template and quick.all_special_ids == full.all_special_ids
    assert quick("hello").input_ids == full("hello").input_ids and len(quick) == len(full)
    assert quick.encode("hello there", max_length=3, truncation=True) == quick.encode("hello there")[:3]


@with_fma
@pytest.mark.parametrize("facts", [cpus.N1, cpus.AMX], ids=lambda facts: facts.name)
def test_a_rule_of_the_checkpoint_counts_without_transformers(converted: Path, facts: CpuFacts) -> None:
    """Catches a generation config that is read and not followed; and, on a CPU that is fast at bfloat16, an engine
    that was refused for a dtype nobody had asked for."""
    outrider.load(str(converted), None, "cpu", engine="numba")  # kernels are compiled for the CPU that there is
    with cpu.using(facts):
        _follows_its_rules(converted)


def _follows_its_rules(converted: Path) -> None:
    options = {"max_new_tokens": 6, "eos": ()}
    free = outrider.load(str(converted), None, "cpu", engine="numba").generate("hello", **options).tokens
    _set(converted, suppress_tokens=[free[0]], eos_token_id=[free[1], 300])
    llm = outrider.load(str(converted), None, "cpu", engine="numba")
    assert free[0] not in llm.generate("hello", **options).tokens
    assert llm._defaults.eos == {free[1], 300}


def _set(folder: Path, **settings: object) -> None:
    """Settings of the checkpoint, changed as its owner might, with the manifest in step."""
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | settings), encoding="utf-8")
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    manifest["files"][file.name]["bytes"] = file.stat().st_size
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was(on: bool) -> None:
    """Catches a process that never collects garbage again, or does though it was told not to."""
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(ZeroDivisionError), gc_paused():
            assert not gc.isenabled()
            _ = 1 / 0
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()

"""llama.cpp among the engines of a comparison: which file it reads, what it is asked, and what its clock says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import library
from bench.test_cpu import asked, fake, quick_bus  # noqa: F401  the last is a fixture
from outrider.bench import worker, worker_engines
from outrider.bench.cpu import Bench, CpuPlan, contenders
from outrider.bench.llamacpp import WAYS
from outrider.cli.main import app
from outrider.errors import BadOption
from outrider.models.hub.checkpoint import look
from tiny_gguf import write_gguf

TASKS = {"first": ["hello", "he ll"], "second": ["a b"]}


@pytest.fixture
def file(tmp_path: Path, cache: Path) -> str:
    return str(write_gguf(tmp_path / "tiny.gguf", {"": "Q8_0"}))


def test_the_same_file_on_both_sides(file: str, tmp_path: Path) -> None:
    """Packed weights were compared with another file's, or with unpacked ones, unless one was named by hand."""
    plan = CpuPlan(file, ("outrider", "llamacpp"))
    ours, *theirs = contenders(plan, look(file))
    assert ours.target == file and {one.target for one in theirs} == {file}
    assert [one.ways for one in theirs] == [(way,) for way in WAYS] and {one.dtype for one in theirs} == {"Q8_0"}
    other = str(write_gguf(tmp_path / "other.gguf", {"": "Q4_1"}))
    plan = CpuPlan(file, ("llamacpp",), draft=other, models={"llamacpp": other})
    found = contenders(plan, look(file))
    assert {one.target for one in found} == {other} and {one.dtype for one in found} == {"Q4_1"}
    assert found[-1].ways == ("assisted",) and found[-1].draft == other


def test_a_short_names_own_file(file: str) -> None:
    """The default model is pulled as a GGUF file, which is then nobody's argument."""
    place = look(file).place
    (found, *_) = contenders(CpuPlan(place, ("llamacpp",)), look(place))
    assert found.target == file


def test_a_target_without_a_file(tmp_path: Path) -> None:
    """It is named with the remedy, and the others go on."""
    folder = str(library.save_llama(tmp_path / "target"))
    python, _ = fake(tmp_path)
    plan = CpuPlan(folder, ("llamacpp", "openvino"), tokens=4, threads=1, pythons={"openvino": python})
    report = Bench(plan, look(folder), {"a": ["the end"]}).run()
    assert set(report["failed"]) == {f"llamacpp {way}" for way in WAYS}
    assert "--peer-model llamacpp=FILE.gguf" in report["failed"]["llamacpp plain"]
    assert {row["way"] for row in report["rows"]} == {"openvino plain", "openvino lookup"}


def test_prefill_and_decoding_by_the_engines_own_clock(file: str, tmp_path: Path) -> None:
    """What the whole call takes is not what decoding takes: reading the prompt and the transport are no part of it."""
    own = "answer.update(first_seconds=0.25, decode_seconds=0.5) if asked['do'] == 'generate' else None"
    theirs, log = fake(tmp_path, own, "theirs")
    other, _ = fake(tmp_path, name="other")
    plan = CpuPlan(
        file, ("llamacpp", "openvino"), tokens=4, threads=2, contexts=(20,),
        pythons={"llamacpp": theirs, "openvino": other},
    )  # fmt: skip
    bench = Bench(plan, look(file), TASKS)
    report = bench.run()
    assert not report["failed"]
    rows = {row["way"]: row for row in report["rows"] if row["task"] == "all"}
    read = sum(len(prompt) for _, prompt in bench.prompts)
    assert rows["llamacpp plain"]["tokens_per_second"] == pytest.approx(3 / 0.5)
    assert rows["llamacpp plain"]["prefill_tokens_per_second"] == pytest.approx(read / (3 * 0.25))
    assert rows["openvino plain"]["tokens_per_second"] == pytest.approx(3 / 1.0)
    assert rows["openvino plain"]["prefill_tokens_per_second"] == pytest.approx(read / (3 * 1.0))
    context = next(row for row in report["contexts"] if row["way"] == "llamacpp plain")
    assert context["prefill_tokens_per_second"] == pytest.approx(80.0) and context["tokens_per_second"] == 6.0
    loads = [request for request in asked(log) if request["do"] == "load"]
    assert {request["threads"] for request in loads} == {2} and {request["target"] for request in loads} == {file}


def test_what_reading_a_packed_file_would_take(file: str, tmp_path: Path) -> None:
    """The share of the floor was unknown for packed weights: a file says what its weights take."""
    packed = "answer.update(dtype='Q8_0') if asked['do'] == 'load' else None"
    python, _ = fake(tmp_path, packed)
    plan = CpuPlan(
        file, ("llamacpp", "openvino"), 4, threads=1, pythons=dict.fromkeys(("llamacpp", "openvino"), python)
    )
    report = Bench(plan, look(file), TASKS).run()
    sizes = {about["bytes_each"] for about in report["engines"].values()}
    assert len(sizes) == 1 and 1.0 < sizes.pop() < 1.3, "34 bytes for 32 weights, and what else is in the file"
    assert all(row["floor_share"] > 0 for row in report["rows"])


def test_its_file_says_the_precision() -> None:
    with pytest.raises(BadOption, match=r"as its file has them; .* --peer-model llamacpp=FILE\.gguf"):
        CpuPlan("m", ("llamacpp:float32",))


# --- the worker, with a stand-in for the package ----------------------------------------------------------


class Server(BaseHTTPRequestHandler):
    """Answers as llama.cpp's server does. ``reused``: tokens of a prompt that it would not read again."""

    requests: list[dict[str, Any]]
    reused = 0

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({"path": self.path, **request})
        timings = {"prompt_n": len(request["prompt"]) - self.reused, "prompt_ms": 250.0, "predicted_ms": 500.0}
        answer = {"tokens": list(range(request["n_predict"])), "timings": timings}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What is used of xllamacpp; ``params`` are those that a server was made with."""
    handler = type("Handler", (Server,), {"requests": [], "reused": 0})
    listening = HTTPServer(("127.0.0.1", 0), handler)
    Thread(target=listening.serve_forever, daemon=True).start()

    def params() -> Any:
        def threads() -> Any:
            return SimpleNamespace(n_threads=-1)

        draft = SimpleNamespace(mparams=SimpleNamespace(path=""), cpuparams=threads(), cpuparams_batch=threads())
        return SimpleNamespace(
            model=SimpleNamespace(path=""), cpuparams=threads(), cpuparams_batch=threads(),
            speculative=SimpleNamespace(types=[], draft=draft),
        )  # fmt: skip

    def server(given: Any) -> Any:
        found.params = given
        return SimpleNamespace(listening_address=f"http://127.0.0.1:{listening.server_port}")

    kinds = SimpleNamespace(
        **{f"COMMON_SPECULATIVE_TYPE_{name}": name for name in worker_engines.LlamaCpp.WAYS.values()}
    )
    found = SimpleNamespace(
        CommonParams=params, Server=server, common_speculative_type=kinds, handler=handler, params=None,
        get_system_info=lambda: "CPU : NEON = 1 | DOTPROD = 1 | ",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "xllamacpp", found)
    monkeypatch.setattr(worker_engines, "version", lambda name: "1.0")
    yield found
    listening.shutdown()
    listening.server_close()


def loaded(way: str) -> worker_engines.LlamaCpp:
    wanted = {"target": "a/model.gguf", "dtype": "Q8_0", "ways": [way], "draft": "d.gguf", "threads": 2, "length": 99}
    return worker_engines.LlamaCpp(wanted)


ASKED = {"way": "plain", "prompt": [5, 6, 7], "tokens": 4, "temperature": 0.0, "seed": 0}


def test_what_llamacpp_is_asked(package: Any) -> None:
    """The same ids, threads for both phases, greedy, to the end, and nothing kept of an earlier prompt."""
    engine = loaded("plain")
    params = package.params
    assert (params.model.path, params.n_ctx, params.n_parallel) == ("a/model.gguf", 99, 1)
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 2
    assert not params.cache_prompt and params.cache_ram_mib == 0 and not params.speculative.types
    answer = worker.generated(engine, ASKED)
    assert answer["tokens"] == [0, 1, 2, 3] and answer["seconds"] > 0
    assert (answer["first_tokens"], answer["first_seconds"], answer["decode_seconds"]) == (1, 0.25, 0.5)
    (request,) = package.handler.requests
    assert request["path"] == "/completion" and request["prompt"] == [5, 6, 7] and request["n_predict"] == 4
    assert request["temperature"] == 0 and request["samplers"] == ["temperature"]
    assert request["ignore_eos"] and not request["cache_prompt"]
    assert engine.notes == {"plain": "model.gguf, built for NEON DOTPROD"}, "a wheel may be built for older CPUs"


@pytest.mark.parametrize(("way", "kind"), list(worker_engines.LlamaCpp.WAYS.items())[1:])
def test_its_ways_of_speculation(package: Any, way: str, kind: str) -> None:
    loaded(way)
    speculative = package.params.speculative
    assert speculative.types == [kind]
    assisted = way == "assisted"
    assert speculative.draft.mparams.path == ("d.gguf" if assisted else "")
    assert (
        speculative.draft.cpuparams.n_threads == speculative.draft.cpuparams_batch.n_threads == (2 if assisted else -1)
    )
    assert set(WAYS) | {"assisted"} == set(worker_engines.LlamaCpp.WAYS)


def test_a_prompt_that_was_not_read_is_no_prefill(package: Any) -> None:
    """A prompt cache would make prefill look many times as fast."""
    package.handler.reused = 2
    with pytest.raises(ValueError, match="read 1 tokens of a prompt of 3"):
        worker.generated(loaded("plain"), ASKED)


# --- the real thing ----------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="could not import 'xllamacpp'")
def test_ours_and_llamacpp(file: str, tmp_path: Path) -> None:
    """Both on one packed file, in processes of their own; texts of one length, and the first token is the same."""
    out, prompts = tmp_path / "report.json", tmp_path / "prompts.jsonl"
    lines = [{"task": task, "prompt": text} for task, texts in TASKS.items() for text in texts]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    words = ["bench", "cpu", file, "--engines", "outrider,llamacpp", "--draft", "copy", "--prompts", str(prompts)]
    ended = CliRunner().invoke(app, [*words, "--tokens", "8", "--threads", "1", "--contexts", "40", "--out", str(out)])
    assert ended.exit_code == 0, ended.output
    report = json.loads(out.read_text())
    rows = {row["way"]: row for row in report["rows"] if row["task"] == "all"}
    assert set(rows) == {"outrider plain", "outrider speculative", *(f"llamacpp {way}" for way in WAYS)}
    for way in WAYS:
        row = rows[f"llamacpp {way}"]
        assert row["prompts"] == 3 and row["prefill_tokens_per_second"] > 0 and row["agreement"] >= 1
    assert len([row for row in report["contexts"] if row["context"] == 40]) == len(rows)

"""Comparing engines: figures that follow from the timings, fair turns, peers that stand still, fail or die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import library
from outrider.bench import cpu, peers
from outrider.bench.cpu import Bench, Plan, draft_place, seats
from outrider.bench.cpu_rows import Cell, Results, rows
from outrider.bench.machine import Neighbours, cpu_name, read_bandwidth
from outrider.bench.peers import Peer, PeerFailed, Seat
from outrider.bench.prompts import CONVERSATIONS, read
from outrider.bench.start import STAGES, start
from outrider.cli.main import app
from outrider.errors import BadOption, OutriderError
from outrider.models.checkpoint import look

TASKS = {"first": ["the end", "then and there"], "second": ["a b c a b c a b"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("cpu") / "target"))


# --- figures -----------------------------------------------------------------------------------------


def cell(seconds: float, first_seconds: float = 1.0, first_tokens: int = 1, last: int = 0, tokens: int = 5) -> Cell:
    return Cell((*range(tokens - 1), last), seconds, first_tokens, first_seconds)


def found(results: Results, floor: float | None = 8.0) -> dict[tuple[str, str], Any]:
    return {(row.task, row.way): row for row in rows(results, lambda way: floor)}


def test_the_prompts_time_counts_apart() -> None:
    """Four tokens in two seconds behind a first one that took one: 2 a second, 5/3 with the prompt."""
    results = Results()
    results.add(0.0, "a", 0, "outrider plain", cell(3.0))
    row = found(results)["all", "outrider plain"]
    assert (row.tokens_per_second, row.whole_tokens_per_second, row.first_seconds) == (2.0, pytest.approx(5 / 3), 1.0)
    assert row.floor_share == 0.25 and row.interval == (None, None) and row.prompts == 1
    assert found(results, floor=None)["all", "outrider plain"].floor_share is None


def test_totals_over_totals_and_ratios() -> None:
    """Catches means of ratios, and ratios over prompts that only one of the two has decoded."""
    results = Results()
    for number, seconds in enumerate((2.0, 5.0)):
        results.add(0.0, "a", number, "outrider plain", cell(seconds))
        results.add(0.0, "a", number, "outrider speculative", cell(1.5))
        results.add(0.0, "a", number, "vllm plain", cell(1 + 2 * (seconds - 1)))
    results.add(0.0, "b", 2, "outrider plain", cell(101.0))
    table = found(results)
    assert table["a", "outrider plain"].tokens_per_second == pytest.approx(8 / 5)
    assert table["all", "outrider speculative"].over_plain == pytest.approx((8 / 1) / (8 / 5))  # not with prompt 2
    assert table["a", "vllm plain"].ours_over == pytest.approx((8 / 1) / (8 / 10))
    assert table["a", "vllm plain"].our_plain_over == pytest.approx(2.0) and table["a", "vllm plain"].over_plain == 1
    assert table["all", "outrider plain"].prompts == 3 and ("b", "vllm plain") not in table
    low, high = table["a", "outrider plain"].interval
    assert low <= 8 / 5 <= high


def test_the_middle_repeat_counts() -> None:
    results = Results()
    for seconds in (9.0, 2.0, 3.0):
        results.add(0.0, "a", 0, "outrider plain", cell(seconds))
    assert found(results)["a", "outrider plain"].tokens_per_second == 2.0
    assert len(results.samples()) == 3


def test_texts_are_compared_with_the_same_engines() -> None:
    """At temperature 0 only, and each engine with itself; the agreement with ours is counted in tokens."""
    results = Results()
    for temperature in (0.0, 1.0):
        for way, last in (("outrider plain", 1), ("vllm plain", 2), ("vllm lookup", 2), ("outrider speculative", 3)):
            results.add(temperature, "a", 0, way, cell(2.0, last=last))
    table = {(row.temperature, row.task, row.way): row for row in rows(results, lambda way: None)}
    same = {way: table[0.0, "a", way].same_as_plain for way in ("vllm lookup", "outrider speculative")}
    assert same == {"vllm lookup": 1, "outrider speculative": 0}
    assert table[0.0, "a", "vllm plain"].agreement == 4 and table[0.0, "a", "outrider plain"].agreement == 5
    assert table[1.0, "a", "vllm lookup"].same_as_plain is None and table[1.0, "a", "vllm lookup"].agreement is None


# --- prompts and the machine -------------------------------------------------------------------------


def test_six_tasks_of_spec_bench(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [{"category": c, "turns": [f"{c} {i}"]} for c in (*CONVERSATIONS, "rag", "qa") for i in range(3)]
    file.write_text("\n".join(map(json.dumps, lines)))
    tasks = read(file, per_task=4, spec_bench=True)
    assert list(tasks) == ["multi-turn", "rag", "qa"] and len({p.split()[0] for p in tasks["multi-turn"]}) == 4
    assert set(read(file)) == {*CONVERSATIONS, "rag", "qa"}


def test_what_a_run_reads(folder: str) -> None:
    """The input table of this model is no part of a run; the output layer of the same size is."""
    checkpoint = look(folder)
    assert checkpoint.numbers() - checkpoint.numbers_read() == library.ROWS * 32
    assert checkpoint.dtype == "float32" and checkpoint.encode("the") == checkpoint.tokenizer.encode("the")


def test_the_machine_has_a_name_and_a_bus() -> None:
    speed = read_bandwidth(1, size=2**20, repeats=3)
    assert cpu_name() and 1e6 < speed["min"] <= speed["median"] <= speed["max"]


def test_neighbours_are_not_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches own work counted as somebody else's: what this process burns is taken off again."""
    if not Path("/proc/stat").is_file():
        pytest.skip("the system does not tell")
    monkeypatch.setattr(Path, "read_text", lambda *a, **k: f"cpu  {int(100 * clock[0])} 0 0 999 0\n")
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    clock, own = [10.0], [4.0]
    watch = Neighbours(lambda: own[0])
    clock[0], own[0] = 20.0, 13.0  # one core was busy for ten seconds, nine of them ours
    assert watch.cores() == pytest.approx(0.1)


# --- peers -------------------------------------------------------------------------------------------

FAKE = """
    import json, os, sys, time
    log = open({log!r}, "a")
    count = 0
    for line in sys.stdin:
        asked = json.loads(line)
        log.write(json.dumps({{"pid": os.getpid(), "omp": os.environ.get("OMP_NUM_THREADS"), **asked}}) + "\\n")
        log.flush()
        if asked["do"] == "load":
            answer = {{"version": "1", "dtype": "int8", "notes": {{}}, "seconds": 0.0}}
        else:
            count += 1
            tokens = list(range(asked["tokens"]))
            answer = {{"tokens": tokens, "seconds": 2.0, "first_tokens": 1, "first_seconds": 1.0}}
        {trouble}
        print(json.dumps(answer), flush=True)
"""


def fake(place: Path, trouble: str = "pass", name: str = "python") -> tuple[str, Path]:
    """An interpreter that ignores the script it is given and plays an engine -> it, and what it was asked."""
    script, log = place / name, place / f"{name}.log"
    script.write_text(f"#!{sys.executable}\n" + textwrap.dedent(FAKE.format(log=str(log), trouble=trouble)))
    script.chmod(0o755)
    return str(script), log


def asked(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def bench(folder: str, out: Path | None = None, engine: str = "vllm", **more: Any) -> Bench:
    return Bench(Plan(folder, (engine,), tokens=4, threads=1, out=out, **more), look(folder), TASKS)


@pytest.fixture(autouse=True)
def quick_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "read_bandwidth", lambda threads: {"median": 1e9, "min": 1e9, "max": 1e9, "n": 1})


def test_engines_take_turns(folder: str, tmp_path: Path) -> None:
    """Every way gets every prompt, another one first each time, after a warm-up; the file is there at the end."""
    python, log = fake(tmp_path)
    out = tmp_path / "report.json"
    report = bench(folder, out, pythons={"vllm": python}, temperatures=(0.0, 1.0)).run()
    requests = asked(log)
    assert [r["ways"] for r in requests if r["do"] == "load"] == [["plain"], ["lookup"]]
    assert {r["omp"] for r in requests} == {"1"}
    timed = [r for r in requests if r["do"] == "generate"]
    warm, timed = timed[:2], timed[2:]
    assert [r["way"] for r in warm] == ["plain", "lookup"]
    ways = [r["way"] for r in timed]
    assert ways == ["plain", "lookup", "lookup", "plain"] * 3
    assert [r["temperature"] for r in timed] == [0.0] * 6 + [1.0] * 6 and len({str(r["prompt"]) for r in timed}) == 3
    assert not report["failed"] and not report["interrupted"]
    assert json.loads(out.read_text())["rows"] == json.loads(json.dumps(report["rows"]))
    row = next(r for r in report["rows"] if r["way"] == "vllm lookup" and r["task"] == "all")
    assert row["tokens_per_second"] == 3.0 and row["same_as_plain"] == 3
    floor = 1e9 / look(folder).numbers_read()  # int8: a byte each
    assert row["floor_share"] == pytest.approx(3.0 / floor)


def test_a_peer_stands_still_between_requests(folder: str, tmp_path: Path) -> None:
    """Catches engines whose threads spin while another one is measured."""
    if not hasattr(signal, "SIGSTOP") or not Path("/proc/self/stat").is_file():
        pytest.skip("no such thing here")
    python, _ = fake(tmp_path)
    peer = Peer(Seat("vllm", "float32", folder, ("plain",), python=python), threads=1)
    try:
        for _ in range(2):
            peer.ask({"do": "load"}, timeout=30)
            assert becomes(peer.process.pid, "T")
    finally:
        peer.end()
    assert peer.process.returncode is not None


def state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def becomes(pid: int, *states: str | None) -> bool:
    """Signals take a moment."""
    for _ in range(100):
        if state(pid) in states:
            return True
        time.sleep(0.1)
    return False


GONE = (None, "Z", "X")


def test_a_stopped_peer_does_not_outlive_us(folder: str, tmp_path: Path) -> None:
    """A stopped process reads no end of its input: without a group of its own it would stay for ever."""
    if not Path("/proc/self/stat").is_file():
        pytest.skip("no such thing here")
    python, _ = fake(tmp_path)
    code = f"""
        import time
        from outrider.bench.peers import Peer, Seat
        peer = Peer(Seat("vllm", "float32", "m", ("plain",), python={python!r}), threads=1)
        peer.ask({{"do": "load"}}, timeout=30)
        print(peer.process.pid, flush=True)
        time.sleep(60)
    """
    ours = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    pid = int(ours.stdout.readline())
    assert becomes(pid, "T")
    ours.kill()
    ours.wait()
    gone = becomes(pid, *GONE)
    if not gone:
        os.kill(pid, signal.SIGKILL)
    assert gone


def test_a_busy_peer_does_not_outlive_us_either() -> None:
    code = "from outrider.bench.worker import leave_with; leave_with(parent=-1)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 1


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("answer = {'error': 'ValueError: no such thing'}", "no such thing"),
        ("sys.exit('out of luck')", "out of luck"),
        ("answer['tokens'] = [1]", "gave 1 tokens where 4"),
    ],
)
def test_one_engine_fails_and_the_others_go_on(folder: str, tmp_path: Path, trouble: str, reason: str) -> None:
    """From its second text on, the warm-up counted as the first; what it gave before is kept."""
    bad, _ = fake(tmp_path, f"if count > 2: {trouble}", "bad")
    good, log = fake(tmp_path, name="good")
    plan = Plan(folder, ("vllm", "openvino"), 4, threads=1, pythons={"vllm": bad, "openvino": good})
    report = Bench(plan, look(folder), TASKS).run()
    assert set(report["failed"]) == {"vllm plain", "vllm lookup"}
    assert all(reason in said and "temperature 0" in said for said in report["failed"].values())
    counts = {r["way"]: r["prompts"] for r in report["rows"] if r["task"] == "all"}
    assert counts == {"vllm plain": 1, "vllm lookup": 1, "openvino plain": 3, "openvino lookup": 3}


def test_an_engine_that_cannot_be_loaded(folder: str, tmp_path: Path) -> None:
    python, _ = fake(tmp_path, "if asked.get('ways') == ['lookup']: answer = {'error': 'not here'}")
    report = bench(folder, pythons={"vllm": python}).run()
    assert report["failed"] == {"vllm lookup": "vllm: not here"} and list(report["engines"]) == ["vllm plain"]


def test_an_engine_without_room(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_bytes", lambda: 1000.0)
    report = bench(folder, pythons={"vllm": fake(tmp_path)[0]}).run()
    assert "--engines" in report["failed"]["vllm plain"] and not report["rows"]


def test_no_answer_is_a_failure(folder: str, tmp_path: Path) -> None:
    python, _ = fake(tmp_path, "time.sleep(60)")
    peer = Peer(Seat("vllm", "float32", folder, ("plain",), python=python), threads=1)
    with pytest.raises(PeerFailed, match="no answer"):
        peer.ask({"do": "load"}, timeout=0.5)
    peer.end()


def test_ctrl_c_keeps_what_was_measured(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, log = fake(tmp_path)
    ask, calls = Peer.ask, []

    def interrupted(self: Peer, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        calls.append(request)
        if len(calls) > 8:  # two are loaded and warmed up with four; two prompts of two ways
            raise KeyboardInterrupt
        return ask(self, request, timeout)

    monkeypatch.setattr(Peer, "ask", interrupted)
    out = tmp_path / "report.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in ("one", "two", "three")))
    words = ["bench", "cpu", folder, "--engines", "vllm", "-n", "4", "--out", str(out), "--prompts", str(prompts)]
    ended = CliRunner().invoke(app, [*words, "--peer-python", f"vllm={python}"])
    assert ended.exit_code == 130 and "interrupted" in ended.output
    report = json.loads(out.read_text())
    assert report["interrupted"] and {r["prompts"] for r in report["rows"] if r["task"] == "all"} == {2}
    assert all(becomes(r["pid"], *GONE) for r in asked(log))


def test_peers_wait_their_own_way(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches our wait policy in a peer's process, which could make it slower than its users have it."""
    monkeypatch.setattr(peers, "ADDED", {"OMP_WAIT_POLICY": "PASSIVE"})
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    own = peers._environment(3, Seat("transformers", "float32", folder, ("plain",)))
    other = peers._environment(3, Seat("vllm", "float32", folder, ("plain",), python="/other/python"))
    assert "OMP_WAIT_POLICY" not in own and own["OMP_NUM_THREADS"] == "3" and own["PYTHONPATH"] == "/some/where"
    assert "PYTHONPATH" not in other


def test_prompts_must_fit(folder: str) -> None:
    with pytest.raises(BadOption, match="no prompt of 1 fits"):
        Bench(Plan(folder, ("outrider",), tokens=4), look(folder), {"a": ["word " * 99]})


# --- who takes part ----------------------------------------------------------------------------------


def test_seats(folder: str, tmp_path: Path) -> None:
    """Ours gets the name it was asked by, others the checkpoint, or a model of their own."""
    plan = Plan(
        folder, ("outrider", "transformers", "transformers:bfloat16", "openvino"), draft=folder,
        models={"openvino": str(tmp_path)}, pythons={"openvino": "/other/python"},
    )  # fmt: skip
    found = seats(plan, look(folder))
    assert [(s.name, s.dtype, s.ways) for s in found] == [
        ("outrider", "auto", ("plain", "speculative")),
        ("transformers", "float32", ("plain", "lookup", "assisted")),
        ("transformers:bfloat16", "bfloat16", ("plain", "lookup", "assisted")),
        ("openvino", "float32", ("plain",)),
        ("openvino", "float32", ("lookup",)),
    ]
    assert found[3].target == str(tmp_path) and found[3].python == "/other/python" and found[1].draft == folder


def test_drafts_that_others_can_use(folder: str, tmp_path: Path) -> None:
    assert draft_place(folder, "auto") is None and draft_place(folder, "copy") is None
    assert draft_place(folder, folder) == folder and draft_place(folder, f"copy>{folder}") is None
    partner = draft_place("gpt-small", "auto")
    assert partner is not None and Path(partner).name == "draft" and draft_place(folder, "gpt-small") == partner


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engines", "llamacpp"], "known: outrider"),
        (["--engines", "outrider,outrider"], "twice"),
        (["--engines", ","], "empty"),
        (["--engines", "vllm:int8"], "dtype must be"),
        (["--peer-python", "vllm"], "ENGINE=PATH"),
        (["--peer-python", "vllm=/no/such/python"], "does not exist"),
        (["--peer-model", "what=."], "must be one of"),
        (["--tokens", "1"], "at least 2"),
        (["--threads", "0"], "at least 1"),
        (["--temperature", "-1"], "at least 0"),
        (["--dtype", "int3"], "dtype must be"),
        (["--repeats", "0"], "at least 1"),
        (["--out", "/no/such/place/x.json"], "make it first"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(words: list[str], said: str, folder: str) -> None:
    ended = CliRunner().invoke(app, ["bench", "cpu", folder, *words])
    assert isinstance(ended.exception, OutriderError | BadOption) and said in str(ended.exception)


# --- the real thing, on a tiny model -----------------------------------------------------------------


@pytest.mark.slow
def test_ours_and_transformers(folder: str, tmp_path: Path) -> None:
    """Both engines in their own processes, the target as its own draft: the same texts, forced length, a table."""
    out, prompts = tmp_path / "report.json", tmp_path / "prompts.jsonl"
    lines = [{"task": task, "prompt": text} for task, texts in TASKS.items() for text in texts]
    prompts.write_text("\n".join(map(json.dumps, [*lines, {"task": "first", "prompt": "too long " * 99}])))
    words = ["bench", "cpu", folder, "--engines", "outrider,transformers", "--draft", folder, "--prompts", str(prompts)]
    words += ["--tokens", "12", "--temperature", "0", "--temperature", "1", "--threads", "1", "--out", str(out)]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    report = json.loads(out.read_text())
    ways = ["outrider plain", "outrider speculative"] + [f"transformers {w}" for w in ("plain", "lookup", "assisted")]
    assert list(report["engines"]) == ways and {e["dtype"] for e in report["engines"].values()} == {"float32"}
    table = {(r["temperature"], r["task"], r["way"]): r for r in report["rows"]}
    for way in ways:
        row = table[0.0, "all", way]
        assert row["prompts"] == 3 and row["tokens_per_second"] > 0 and row["first_seconds"] > 0
        assert row["agreement"] >= 1  # of the same weights, though rounded elsewhere
        assert table[1.0, "all", way]["tokens_per_second"] > 0
    assert table[0.0, "all", "outrider speculative"]["same_as_plain"] == 3
    assert report["command"].startswith(f"outrider bench cpu {folder} --engines outrider,transformers")
    assert "temperature 1: tokens per second by task" in ended.output.replace("\n", " ")
    assert report["left_out"] == 1 and "left out" in ended.output


@pytest.mark.slow
def test_from_the_start_to_the_first_token(folder: str) -> None:
    report = start(folder, draft="none", tokens=4, repeats=1)
    assert [stage["stage"] for stage in report["stages"]] == list(STAGES) and report["dtype"] == "float32"
    seconds = [stage["seconds"]["median"] for stage in report["stages"]]
    assert seconds == sorted(seconds) and seconds[0] > 0


def test_a_start_that_fails(tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match="no config.json"):
        start(str(tmp_path), repeats=1)

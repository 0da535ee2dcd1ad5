"""Comparing engines: fair turns, and peers that stand still, fail or die."""

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
from outrider.bench.cpu import Bench, CpuPlan
from outrider.bench.peers import Contender, Peer, PeerFailed
from outrider.cli.main import app
from outrider.errors import BadOption
from outrider.models.hub.checkpoint import look

TASKS = {"first": ["the end", "then and there"], "second": ["a b c a b c a b"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(library.save_llama(tmp_path_factory.mktemp("cpu") / "target"))


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
    return Bench(CpuPlan(folder, (engine,), tokens=4, threads=1, out=out, **more), look(folder), TASKS)


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
    peer = Peer(Contender("vllm", "float32", folder, ("plain",), python=python), threads=1)
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
        from outrider.bench.peers import Peer, Contender
        peer = Peer(Contender("vllm", "float32", "m", ("plain",), python={python!r}), threads=1)
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
    plan = CpuPlan(folder, ("vllm", "openvino"), 4, threads=1, pythons={"vllm": bad, "openvino": good})
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
    peer = Peer(Contender("vllm", "float32", folder, ("plain",), python=python), threads=1)
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


def test_ctrl_c_while_engines_are_loaded(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory was noted for engines that had not been heard of yet."""
    python, _ = fake(tmp_path)
    ask = Peer.ask

    def interrupted(self: Peer, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        if request["do"] == "generate" and request["way"] == "lookup":
            raise KeyboardInterrupt
        return ask(self, request, timeout)

    monkeypatch.setattr(Peer, "ask", interrupted)
    report = bench(folder, pythons={"vllm": python}).run()
    assert report["interrupted"] and list(report["engines"]) == ["vllm plain"]
    assert report["engines"]["vllm plain"]["peak_bytes"] or not Path("/proc/self/status").is_file()


def test_peers_wait_their_own_way(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches our wait policy in a peer's process, which could make it slower than its users have it."""
    monkeypatch.setattr(peers, "ADDED", {"OMP_WAIT_POLICY": "PASSIVE"})
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    own = peers.worker_environment(3, Contender("transformers", "float32", folder, ("plain",)))
    other = peers.worker_environment(3, Contender("vllm", "float32", folder, ("plain",), python="/other/python"))
    assert "OMP_WAIT_POLICY" not in own and own["OMP_NUM_THREADS"] == "3" and own["PYTHONPATH"] == "/some/where"
    assert "PYTHONPATH" not in other


def test_prompts_must_fit(folder: str) -> None:
    with pytest.raises(BadOption, match="no prompt of 1 fits"):
        Bench(CpuPlan(folder, ("outrider",), tokens=4), look(folder), {"a": ["word " * 99]})


def test_context_lengths_have_columns_of_their_own(folder: str, tmp_path: Path) -> None:
    """Prefill hid in the median time to the first token of short prompts: no table showed that it was quadratic."""
    python, log = fake(tmp_path)
    longest = look(folder).longest
    measured = bench(folder, pythons={"vllm": python}, contexts=(40, 9, longest))
    report = measured.run()
    rows = [row for row in report["contexts"] if row["way"] == "vllm plain"]
    assert [(row["context"], row["prefill_tokens_per_second"]) for row in rows] == [(9, 9.0), (40, 40.0)]
    assert all(row["tokens_per_second"] == 3.0 and row["over_shortest"] == 1.0 for row in rows)
    assert report["contexts_left_out"] == [longest]
    prompts = [request["prompt"] for request in asked(log) if request["do"] == "generate"]
    assert {len(prompt) for prompt in prompts[-4:]} == {9, 40}
    tasks = {row["task"] for row in report["rows"]}
    assert tasks == {"all", "first", "second"} and report["rows"][0]["prompts"] == 3
    load = next(request for request in asked(log) if request["do"] == "load")
    assert load["length"] >= 40 + 4


@pytest.mark.parametrize("contexts", [(0,), (9, 9)])
def test_context_lengths_that_make_no_sense(folder: str, contexts: tuple[int, ...]) -> None:
    with pytest.raises(BadOption, match="contexts"):
        bench(folder, contexts=contexts)

"""Threads by the cores that are really there, and how they wait: fake control groups, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from outrider.runtime import threads


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A root directory with control groups in it."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


MAX = "sys/fs/cgroup/{}cpu.max"
QUOTA, PERIOD = "sys/fs/cgroup/{}cpu.cfs_quota_us", "sys/fs/cgroup/{}cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {}, 16),
        ("0::/", {MAX.format(""): "max 100000"}, 16),
        ("0::/", {MAX.format(""): "200000 100000"}, 2),
        ("0::/", {MAX.format(""): "150000 100000"}, 2),  # part of a core still works
        ("0::/", {MAX.format(""): "10000 100000"}, 1),
        ("0::/a/b", {MAX.format("a/"): "300000 100000", MAX.format("a/b/"): "max 100000"}, 3),  # a group around it
        ("0::/a/b", {MAX.format("a/"): "300000 100000", MAX.format("a/b/"): "500000 100000"}, 3),
        ("0::/seen/outside/only", {MAX.format(""): "400000 100000"}, 4),  # in a container
        ("4:cpu,cpuacct:/x", {QUOTA.format("cpu,cpuacct/x/"): "250000", PERIOD.format("cpu,cpuacct/x/"): "100000"}, 3),
        ("4:cpu:/x", {QUOTA.format("cpu/"): "50000", PERIOD.format("cpu/"): "25000"}, 2),
        ("4:cpu,cpuacct:/x", {QUOTA.format("cpu/x/"): "100000", PERIOD.format("cpu/x/"): "100000"}, 1),  # by its alias
        ("4:cpu:/", {QUOTA.format("cpu/"): "-1", PERIOD.format("cpu/"): "100000"}, 16),
        ("5:cpuset:/x", {QUOTA.format("cpu/x/"): "100000", PERIOD.format("cpu/x/"): "100000"}, 16),  # not its group
        ("0::/", {MAX.format(""): "nonsense"}, 16),
        ("", {}, 16),
    ],
)
def test_quotas(tmp_path: Path, groups: str, files: dict[str, str], cores: int) -> None:
    assert threads.available_cores(machine(tmp_path, groups, files)) == cores


def test_affinity_and_quota_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a quota that hides an affinity: the smaller one counts."""
    root = machine(tmp_path, "0::/", {MAX.format(""): "800000 100000"})
    assert threads.available_cores(root) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert threads.available_cores(root) == 2


def test_without_control_groups(tmp_path: Path) -> None:
    assert threads.available_cores(tmp_path) == 16


@pytest.mark.parametrize(
    ("environment", "torch_has", "cores", "left_with"),
    [({}, 8, 2, 2), ({}, 1, 2, 1), ({"OMP_NUM_THREADS": "8"}, 8, 2, 8), ({"OMP_NUM_THREADS": ""}, 8, 2, 2)],
)
def test_threads_are_only_taken_away(
    environment: dict[str, str], torch_has: int, cores: int, left_with: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OMP_NUM_THREADS wins, and torch's smaller number (physical cores, or the caller's choice) stays."""
    now = [torch_has]
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: now.__setitem__(0, n))
    assert threads.limit_threads(environment) == left_with == now[0]


def test_the_users_way_of_waiting_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(threads, "ADDED", {})
    for name in threads.CHOICES:
        theirs = {name: "what they say"}
        assert not threads.wait_considerately(theirs) and theirs == {name: "what they say"} and not threads.ADDED
    nothing: dict[str, str] = {}
    assert threads.wait_considerately(nothing) and nothing == threads.WAITING == threads.ADDED


def test_too_late_is_nothing() -> None:
    """With torch loaded the setting would reach child processes only, without ever having had an effect here."""
    environment: dict[str, str] = {}
    assert "torch" in sys.modules and not threads.wait_considerately(environment) and not environment


def shown(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in threads.CHOICES}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept | more, check=True)


def test_the_runtime_that_torch_loads_waits_so() -> None:
    """Catches a setting that comes after torch, or under a name that no runtime reads."""
    code = "import outrider, sys; assert 'torch' not in sys.modules; import torch; torch.ones(9) + 1"
    said = shown(code, OMP_DISPLAY_ENV="VERBOSE").stderr.replace(" ", "")
    if "GOMP_SPINCOUNT" not in said:
        pytest.skip("this build of torch has another OpenMP runtime, or one that does not show its settings")
    assert "GOMP_SPINCOUNT='0'" in said
    theirs = shown(code, OMP_DISPLAY_ENV="VERBOSE", GOMP_SPINCOUNT="77").stderr.replace(" ", "")
    assert "GOMP_SPINCOUNT='77'" in theirs

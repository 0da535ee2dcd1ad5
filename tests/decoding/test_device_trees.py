"""Trees grown, judged and committed on the device: the steps that a CUDA graph holds, here on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as tf
from torch import Tensor

import library
import outrider
from fused_models import as_on_a_gpu_fused
from outrider.core import host_sync
from outrider.core.protocols import Drafter, LanguageModel, Shape
from outrider.core.sampling import Sampling
from outrider.core.token_tree import ROOT, NodeTree, TokenTree, TreeShape
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder
from outrider.decoding.request import Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.stopping import Stopping
from outrider.decoding.tree_device import DeviceTrees
from outrider.drafters import Copying, Fallback, Mixture, Nothing
from outrider.drafters.head import Head, HeadConfig, HeadDrafter, prepared
from outrider.drafters.head.choice import BackendChoice
from outrider.drafters.head.session import HeadSession
from outrider.errors import NumericalError
from outrider.models.tree_session import TreeSession
from outrider.trace import Trace

pytest.importorskip("numba")

PROMPTS = ((40, 41, 42, 40, 41), (50,), tuple(range(40, 75)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.save_llama(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def target(folder: Path) -> LanguageModel:
    return outrider.load(str(folder), draft="none", engine="numba", device="cpu").target.model


@pytest.fixture
def fused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    return as_on_a_gpu_fused(tf.AutoModelForCausalLM.from_pretrained(folder), monkeypatch)


@pytest.fixture
def looping(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A target whose next token follows from the last one alone, so that its text soon goes round in a circle."""
    network = tf.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return as_on_a_gpu_fused(network, monkeypatch)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read on the host, and a head is run by torch for one row, too."""
    monkeypatch.setattr(host_sync, "on_cpu", False)
    monkeypatch.setattr(prepared, "choose", lambda *_: BackendChoice("torch", "as on a GPU"))


def head(attends: bool = True, seed: int = 3) -> HeadDrafter:
    """One that knows the letters of the target's texts, and puts them in an order of its own."""
    letters = torch.tensor(sorted(library.tokenizer().encode(library.LETTERS)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Head(HeadConfig("feature", 32, 48, 2, layers=(1, -1), heads=(4, 2) if attends else (0, 0)))
        for weight in made.requires_grad_(False).parameters():
            weight.copy_(torch.randn(weight.shape) / weight.shape[-1] ** 0.5)
    return HeadDrafter(made, letters, floor=0.0)


def requests(ends: frozenset[int] = frozenset(), length: int = 24) -> list[Request]:
    return [Request(prompt, Stopping(length, eos=ends), seed) for seed, prompt in enumerate(PROMPTS)]


def decoder(target: LanguageModel, drafter: Drafter, gamma: int, tree: int | None, graphs: bool = True) -> Decoder:
    pool = SessionPool(graphs=graphs)
    return Decoder(target, drafter, gumbel_coupling, Sampling(), gamma, 64, tree=tree, pool=pool)


def texts(decoder: Decoder, given: list[Request]) -> tuple[list[list[int]], Trace]:
    trace = Trace()
    rows = {event.index: event.row for event in decoder.stream(given, trace)}
    return [rows[index].tokens for index in range(len(given))], trace


@pytest.mark.parametrize("kind", ["target", "fused"])
@pytest.mark.parametrize(("nodes", "levels"), [(1, 1), (28, 1), (8, 8), (40, 2), (60, 4)])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_the_text_is_plain_decodings(kind: str, nodes: int, levels: int, request: pytest.FixtureRequest) -> None:
    """Catches a node that is judged behind another than its parent, keys and states that stay where a node lay, a step
    that was captured with the numbers of another, and one that cannot be captured."""
    target, graphs = request.getfixturevalue(kind), kind == "fused"
    for ends in (frozenset[int](), frozenset({45, 60, 70})):
        given = requests(ends)
        plain, _ = texts(decoder(target, Nothing(), 0, None), given)
        found, trace = texts(decoder(target, head(), levels, nodes, graphs), given)
        assert found == plain and trace.drafter_error is None and trace.graphs == graphs
        assert trace.runs == len(trace.records)
        kept = {record.accepted for record in trace.records}
        assert nodes == 1 or (levels in kept or levels > 2) and len(kept) > 1, kept
        assert all(record.nodes == nodes for record in trace.records)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_copy_by_itself_is_a_chain(looping: LanguageModel) -> None:
    """Every step was said to have as many nodes as were asked for, so a certificate called it branched."""
    assert {record.nodes for record in texts(decoder(looping, Copying(), 4, 40), requests())[1].records} == {4}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("nodes", "levels"), [(1, 1), (2, 2), (12, 8), (40, 3)])
@pytest.mark.parametrize("how", [Mixture, Fallback])
def test_a_copy_stands_beside_the_tree(looping: LanguageModel, how: type[Mixture], nodes: int, levels: int) -> None:
    """Catches a copy that is lost where the head guesses otherwise, and one that is judged behind the head's nodes."""
    given = requests(length=60)
    plain, _ = texts(decoder(looping, Nothing(), 0, None), given)
    found, trace = texts(decoder(looping, how(Copying(), head()), levels, nodes), given)
    assert found == plain and trace.graphs and trace.drafter_error is None
    alone = texts(decoder(looping, head(), levels, nodes), given)[1]
    kept, by_head = (max(record.accepted for record in each.records) for each in (trace, alone))
    copied = min(levels, nodes // 2)  # a copy takes half of the nodes at most
    assert kept >= copied and (copied < 4 or by_head < copied)


def test_two_trees_beside_each_other() -> None:
    """Catches nodes of the second that are taken for children of the first, and its longer paths that are cut off."""
    first = TokenTree((5, 6, 7), (ROOT, 0, ROOT))
    nodes = NodeTree(torch.tensor([first.tokens]), first.places(torch.device("cpu")))
    both = nodes.with_tree(NodeTree.chain(torch.tensor([[5, 8, 9]])))
    whole = TokenTree((5, 6, 7, 5, 8, 9), (ROOT, 0, ROOT, ROOT, 3, 4))
    places = whole.places(torch.device("cpu"))
    assert both.tokens.tolist() == [list(whole.tokens)]
    assert torch.equal(both.places.paths, places.paths) and torch.equal(both.places.depths, places.depths)
    last, kept = both.followed(torch.tensor([5, 0, 0, 0, 8, 9, 1]))
    assert (int(last), int(kept)) == (6, 3)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_steps_are_captured_once_for_all_requests(fused: LanguageModel) -> None:
    """Catches a capture for every request, which takes longer than its text."""
    made = decoder(fused, head(), 3, 12)
    texts(made, requests())
    [runner] = made.pool.idle
    assert runner.captures == 1
    texts(made, requests())
    assert runner.captures == 1


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("attends", [True, False], ids=["attention", "no attention"])
@pytest.mark.parametrize("shape", [TreeShape(7, 3, 2), TreeShape(28, 4, 6), TreeShape(3, 1, 3), TreeShape(5, 5, 1)])
def test_the_tree_is_of_the_likeliest_paths(target: LanguageModel, shape: TreeShape, attends: bool) -> None:
    """Catches a branch that goes on from another's state or keys: against the same search by forks, path by path."""
    running = target.start(1, Shape(128, 64))
    session = head(attends).start(1, Shape(128, 64), running)
    assert isinstance(session, HeadSession) and session.grows_trees
    for each in (running, session):
        each.admit(0, PROMPTS[2])
    logits = running.score(torch.zeros((1, 0), dtype=torch.int64))
    for each in (running, session):
        each.commit(logits.argmax(-1), torch.tensor([1]))
    found, values = session.grow(shape), searched(session, shape)
    paths = [tuple(found.tokens[0][place - 1].tolist() for place in line[1:] if place) for line in found.places.paths]
    assert len(set(paths)) == shape.nodes + 1 and all(path in values for path in paths[1:])
    least = min(values[path] for path in paths[1:])
    better = [path for path, value in values.items() if value > least + 1e-3 * shape.levels and path not in paths]
    assert not better
    assert found.places.depths.tolist() == [len(path) for path in paths]


def searched(session: HeadSession, shape: TreeShape) -> dict[tuple[int, ...], float]:
    """The log-probability of every path that beams of this size come by."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    values: dict[tuple[int, ...], float] = {}
    for _ in range(shape.levels):
        level: list[tuple[float, tuple[int, ...]]] = []
        for value, path in beams:
            ahead = session.fork(torch.tensor([0]))
            if path:
                ahead.commit(torch.tensor([path]), torch.tensor([len(path)]))
            ahead.backend.begin(ahead.texts, 1)
            last = ahead.context.read(ahead.context.lengths - 1, 1)[:, 0]
            chances = ahead.backend.logits(ahead.texts, 0, last)[0].log_softmax(-1)
            best = chances.topk(shape.beams)
            for chance, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                level.append((value + chance, (*path, int(session.output.tokens[place]))))
        values |= {path: value for value, path in level}
        beams = sorted(level, reverse=True)[: shape.beams]
    return values


def test_what_is_kept_is_the_path_of_the_targets_own_tokens() -> None:
    """Catches a node behind one that was not kept, and a sibling that is taken for a child."""
    drawn = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        count = int(torch.randint(1, 12, (), generator=drawn))
        parents = [int(torch.randint(-1, node, (), generator=drawn)) if node else ROOT for node in range(count)]
        tree = TokenTree(tuple(torch.randint(0, 3, (count,), generator=drawn).tolist()), tuple(parents))
        chosen = torch.randint(0, 3, (count + 1,), generator=drawn)
        nodes = NodeTree(torch.tensor([tree.tokens]), tree.places(torch.device("cpu")))
        last, kept = nodes.followed(chosen)
        expected = longest(tree, chosen.tolist(), ROOT)
        seen.add(expected)
        assert int(kept) == expected and len(tree.path(int(last) - 1)) == expected
        path = tree.path(int(last) - 1)
        assert all(tree.tokens[node] == chosen[tree.parents[node] + 1] for node in path)
        children = tree.children(int(last) - 1)
        assert int(nodes.beside(last)) == (tree.tokens[children[0]] if children else -1)
    assert len(seen) > 3


def longest(tree: TokenTree, chosen: list[int], node: int) -> int:
    """How many guesses can be kept behind a node: several siblings may have the same token."""
    same = [child for child in tree.children(node) if tree.tokens[child] == chosen[node + 1]]
    return max((1 + longest(tree, chosen, child) for child in same), default=0)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_bad_logits_end_a_text_where_they_are_met(target: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches NaN behind a node that is not kept, which is nobody's business, and behind one that is."""
    given = requests()[:1]
    [plain], _ = texts(decoder(target, Nothing(), 0, None), given)
    bad = plain[7]

    def broken(self: TreeSession, tokens: Tensor, places: object) -> Tensor:
        logits = real(self, tokens, places)  # type: ignore[arg-type]
        root = self.context.read(self.context.lengths - 1, 1)
        return logits.masked_fill((torch.cat([root, tokens], 1) == bad)[..., None], torch.nan)

    real = TreeSession.score_nodes
    monkeypatch.setattr(TreeSession, "score_nodes", broken)
    events = []
    with pytest.raises(NumericalError):
        for event in decoder(target, head(), 2, 40).stream(given, Trace()):
            events.append(event)
    assert events[-1].row.finish_reason == "error"
    assert events[-1].row.tokens == plain[: plain.index(bad) + 1]


@pytest.mark.parametrize("broken", ["grow", "commit"])
@pytest.mark.parametrize(("graphs", "after"), [(False, 0), (False, 2), (True, 0), (True, 1)])  # a replay raises nothing
def test_a_drafter_that_fails_costs_its_guesses_only(
    fused: LanguageModel, monkeypatch: pytest.MonkeyPatch, broken: str, graphs: bool, after: int
) -> None:
    """What a drafter raised while a tree was grown on a device ended the request."""
    monkeypatch.setattr(prepared, "choose", lambda *_: BackendChoice("torch", "as on a GPU"))
    monkeypatch.setattr(host_sync, "on_cpu", False)
    given = requests()
    expected, _ = texts(decoder(fused, Nothing(), 0, None, graphs=False), given)
    calls, works = [0], getattr(HeadSession, broken)

    def breaking(self: HeadSession, *given: object) -> object:
        calls[0] += 1
        if calls[0] > after:
            raise RuntimeError("it broke")
        return works(self, *given)

    monkeypatch.setattr(HeadSession, broken, breaking)
    with pytest.warns(UserWarning, match="the drafter failed and is left out|cannot be replayed"):
        found, trace = texts(decoder(fused, head(), 3, 12, graphs=graphs), given)
    assert found == expected
    assert trace.drafter_error == "RuntimeError: it broke" and calls[0] > after


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"repetition_penalty": 1.3}, {"logit_bias": {40: -9.0}}])
def test_other_rules_take_their_steps_on_the_host(target: LanguageModel, options: dict[str, float]) -> None:
    """Catches options that a step on the device would not know of."""
    sampling = Sampling(**options)  # type: ignore[arg-type]
    plain, tree = (replace(decoder(target, drafter, g, n), sampling=sampling) for drafter, g, n in
                   ((Nothing(), 0, None), (head(), 3, 12)))  # fmt: skip
    with tree.pool.lend((target, tree.drafter), 1, Shape(128, 64)) as runner:
        assert DeviceTrees.of(runner, tree, TreeShape(12, 3, 4)) is None
    assert texts(tree, requests())[0] == texts(plain, requests())[0]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_who_takes_steps_on_the_device(target: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a CPU that grows trees of one size, where each node costs, and rules that are not by matching."""
    made = decoder(target, head(), 3, 12)
    with made.pool.lend((target, made.drafter), 1, Shape(128, 64)) as runner:
        assert DeviceTrees.of(runner, made, TreeShape(12, 3, 4)) is not None
        assert DeviceTrees.of(runner, replace(made, verifier=maximal_coupling), TreeShape(12, 3, 4)) is None
        monkeypatch.setattr(host_sync, "on_cpu", True)
        assert DeviceTrees.of(runner, made, TreeShape(12, 3, 4)) is None
    with made.pool.lend((target, Mixture(Copying(), Nothing())), 1, Shape(128, 64)) as runner:
        assert DeviceTrees.of(runner, made, TreeShape(12, 3, 4)) is None

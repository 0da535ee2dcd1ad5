"""On a GPU, trees of guesses: the text of plain decoding, by captured steps and by those taken on the host."""

from __future__ import annotations

import pytest
import torch

from gpu.test_many_rows import SAMPLING, requests
from outrider.bench.shapes import SIZES, build
from outrider.core.protocols import Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.drafters import Ngram, Nothing
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.models.transformers.model import HuggingFaceModel
from outrider.models.tree_session import TreeSession
from outrider.trace import Trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DEVICE = torch.device("cuda")
TREE = TokenTree((5, 9, 5, 7, 9, 2, 3, 5, *range(20)), (ROOT, ROOT, 0, 0, 1, 3, 4, 6, *range(7, 27)))


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float16], ids=str)
def model(request: pytest.FixtureRequest) -> HuggingFaceModel:
    made = build(SIZES["tiny"], DEVICE, request.param)
    assert made.fuse() and made.find_batch_invariance() and made.facts.runs_trees
    return made


def head(model: HuggingFaceModel) -> HeadDrafter:
    size = model.facts.hidden_size
    assert size is not None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Head(HeadConfig("feature", size, 64, 2, layers=(1, -1), heads=(4, 2))).requires_grad_(False)
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape) / weight.shape[-1] ** 0.5)
    return HeadDrafter(made, torch.arange(min(96, model.vocab_size)), floor=0.0)


def texts(
    model: HuggingFaceModel, drafter: Drafter, gamma: int, tree: int | None, sampling: Sampling, graphs: bool
) -> tuple[list[list[int]], Trace]:
    pool, trace = SessionPool(graphs=graphs), Trace()
    decoder = Decoder(model, drafter, gumbel_coupling, sampling, gamma, 64, tree=tree, pool=pool)
    given: list[Request] = requests(model)
    rows = {event.index: list(event.row.tokens) for event in decoder.stream(given, trace)}
    return [rows[index] for index in range(len(given))], trace


@pytest.mark.parametrize("length", [1, 3, 100, 126, 127, 128, 240])
def test_every_node_has_the_bits_of_its_path(model: HuggingFaceModel, length: int) -> None:
    """Also what is committed: keys, values, hidden states and states of layers."""
    text = [(7 * place * place + 3 * place + 11) % 90 for place in range(length)]
    session = model.start(1, Shape(512, 64))
    assert isinstance(session, TreeSession)
    session.keep_states([1, -1])
    session.admit(0, text)
    found = session.score_tree(TREE)[0]
    for node in range(ROOT, len(TREE)):
        alone = model.start(1, Shape(512, 64))
        alone.admit(0, [*text, *TREE.text(node)])
        expected = alone.score(torch.zeros((1, 0), dtype=torch.int64, device=DEVICE))[0, 0]
        assert torch.equal(found[node + 1], expected), node
    path = TREE.path(len(TREE) - 1)
    session.commit_path(path, 4)
    other = model.start(1, Shape(512, 64))
    other.keep_states([1, -1])
    other.admit(0, tokens := [*text, *(TREE.tokens[node] for node in path), 4])
    assert session.states is not None and other.states is not None and session.hidden is not None
    assert torch.equal(session.states[:, : len(tokens) - 1], other.states[:, : len(tokens) - 1])
    assert other.hidden is not None and torch.equal(session.hidden, other.hidden)
    assert torch.equal(session.score_tree(TREE), other.score_tree(TREE))  # type: ignore[attr-defined]


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize(("nodes", "levels"), [(4, 4), (30, 3), (63, 8)])
def test_greedy_text_is_plain_decodings(model: HuggingFaceModel, nodes: int, levels: int, graphs: bool) -> None:
    plain, _ = texts(model, Nothing(), 0, None, Sampling(), graphs)
    found, trace = texts(model, head(model), levels, nodes, Sampling(), graphs)
    assert found == plain and trace.drafter_error is None and trace.graphs == graphs
    assert any(record.accepted for record in trace.records) or nodes == 4


@pytest.mark.parametrize("name", ["head", "ngram"])
def test_other_rules_on_the_host(model: HuggingFaceModel, name: str) -> None:
    """Gumbel coupling matches plain decoding's text; maximal coupling runs to the end, and again to the same one."""
    drafter = head(model) if name == "head" else Ngram(order=3)
    plain, _ = texts(model, Nothing(), 0, None, SAMPLING["gumbel"], False)
    found, trace = texts(model, drafter, 3, 8, SAMPLING["gumbel"], False)
    assert found == plain and trace.drafter_error is None
    runs = []
    for _ in range(2):
        decoder = Decoder(model, drafter, maximal_coupling, Sampling(1.0), 3, 64, tree=8)
        events = list(decoder.stream(requests(model)[-2:], Trace()))
        runs.append([event.tokens for event in events])
    assert runs[0] == runs[1]

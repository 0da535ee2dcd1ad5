"""Trees of guesses on the numba engine: every node has the bits of the text that its path is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from outrider.core.protocols import Shape
from outrider.core.token_tree import ROOT, TokenTree
from outrider.runtime import cpu

pytest.importorskip("numba")

from models.test_engines import BUILT, run_by
from outrider.models.engine.model import EngineModel
from outrider.models.tree_session import TreeSession

pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]

TREE = TokenTree((5, 9, 5, 7, 9, 2, 3, 5), (ROOT, ROOT, 0, 0, 1, 3, 4, 6))
"""Depths 1 to 4; nodes 1 and 3 have siblings before them, and a token stands on several branches."""

STORED = pytest.mark.parametrize("stored", ["float32", "bfloat16"])
"""What keys and values are in: AMX multiplies bfloat16."""

LENGTHS = (1, 3, 14, 15, 16, 17, 31, 40)
"""Of the text before: branches begin before, at and behind the ends of blocks of sixteen keys."""


def text(length: int) -> list[int]:
    return [(7 * place * place + 3 * place + 11) % 90 for place in range(length)]


def session_behind(model: EngineModel, tokens: list[int], capacity: int = 256) -> TreeSession:
    session = model.start(1, Shape(capacity, 9))
    assert isinstance(session, TreeSession)
    session.admit(0, tokens)
    return session


def plain_logits(model: EngineModel, tokens: list[int], capacity: int = 256) -> torch.Tensor:
    """Logits behind the last token, decoded one by one behind the first: what plain decoding has."""
    session = session_behind(model, tokens[:-4] if len(tokens) > 4 else tokens[:1], capacity)
    for token in tokens[-4:] if len(tokens) > 4 else tokens[1:]:
        session.score(torch.zeros((1, 0), dtype=torch.int64))
        session.commit(torch.tensor([[token]]), torch.tensor([1]))
    return session.score(torch.zeros((1, 0), dtype=torch.int64))[0, 0]


@STORED
@pytest.mark.parametrize("name", ["llama", "mistral, a window", "qwen2, biases", "a window in one layer", "wide"])
def test_every_node_has_the_bits_of_its_path(name: str, stored: str, tmp_path: Path) -> None:
    """Catches a key that is read by its place instead of its position, a sibling that is seen, a rotation by place,
    and a sum in another order than that of plain decoding."""
    model = run_by("numba", BUILT[name](), tmp_path, kv_cache_dtype=stored)
    for length in LENGTHS:
        found = session_behind(model, text(length)).score_tree(TREE)[0]
        for node in range(ROOT, len(TREE)):
            expected = plain_logits(model, [*text(length), *TREE.text(node)])
            assert torch.equal(found[node + 1], expected), (name, length, node)


@STORED
def test_branches_at_the_ends_of_tiles(stored: str, tmp_path: Path) -> None:
    """Catches a tree across two tiles of keys, where the second has nothing in common for all nodes."""
    sizes: dict[str, Any] = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.4,
    }  # fmt: skip
    model = run_by("numba", tf.LlamaForCausalLM(tf.LlamaConfig(**sizes)), tmp_path, kv_cache_dtype=stored)
    for length in (253, 255, 256, 257, 510, 513):
        found = session_behind(model, text(length), 1024).score_tree(TREE)[0]
        for node in (ROOT, 2, 5, 7):
            expected = plain_logits(model, [*text(length), *TREE.text(node)], 1024)
            assert torch.equal(found[node + 1], expected), (length, node)


@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_other_weights(weights: str, tmp_path: Path) -> None:
    """Catches a table of paths that only one of the compiled functions reads."""
    model = run_by("numba", BUILT["llama"](), tmp_path, weights)
    found = session_behind(model, text(30)).score_tree(TREE)[0]
    for node in range(ROOT, len(TREE)):
        assert torch.equal(found[node + 1], plain_logits(model, [*text(30), *TREE.text(node)]))


@STORED
@pytest.mark.parametrize("path", [(), (0,), (1,), (0, 2), (0, 3, 5), (1, 4, 6, 7)])
def test_what_is_committed_is_as_if_it_had_been_decoded(path: tuple[int, ...], stored: str, tmp_path: Path) -> None:
    """Catches keys, values, hidden states or states of layers that stay where a node lay in the tree."""
    model = run_by("numba", BUILT["llama"](), tmp_path, kv_cache_dtype=stored)
    for length in (2, 15, 30):
        session = session_behind(model, text(length))
        session.keep_states([1, -1])
        session.admit(0, text(length))
        session.score_tree(TREE)
        session.commit_path(path, 4)
        tokens = [*text(length), *(TREE.tokens[node] for node in path), 4]
        other = session_behind(model, tokens[:1])
        other.keep_states([1, -1])
        other.admit(0, tokens)
        assert session.states is not None and other.states is not None
        assert torch.equal(session.states[:, : len(tokens) - 1], other.states[:, : len(tokens) - 1])
        assert session.hidden is not None and other.hidden is not None and torch.equal(session.hidden, other.hidden)
        assert session.context.tokens[0, : len(tokens)].tolist() == tokens and int(session.cached[0]) == len(tokens) - 1
        assert torch.equal(session.score_tree(TREE), other.score_tree(TREE))
        chain = torch.tensor([[3, 1, 2]])
        session.commit_path((0,), 6)
        other.commit_path((0,), 6)
        assert torch.equal(session.score(chain), other.score(chain))


def test_trees_and_chains_take_turns(tmp_path: Path) -> None:
    """Catches a tree that stays in mind after a run without one."""
    model = run_by("numba", BUILT["llama"](), tmp_path)
    session = session_behind(model, text(20))
    session.score_tree(TREE)
    session.commit_path((1, 4), 8)
    session.score(torch.tensor([[2, 3]]))
    session.commit(torch.tensor([[2, 9]]), torch.tensor([2]))
    session.score_tree(TokenTree((), ()))
    session.commit_path((), 1)
    found = session.score_tree(TREE)[0, 0]
    assert torch.equal(found, plain_logits(model, [*text(20), 9, 9, 8, 2, 9, 1]))

"""Small trained heads that draft from the target's own last hidden state, embeddings and output layer.

Feature: one recurrent block runs once per guess on its own features. Blockwise: k blocks guess k tokens from one
look at the target (Stern et al. 2018), so a whole draft costs no sequential run at all. Both write logits for
the N most frequent tokens only: the output layer is most of a head's cost, and q = 0 elsewhere is still exact.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outrider.drafters.base import ContextSession
from outrider.errors import BadOption, ModelCorrupt, ModelNotFound, require
from outrider.noise import Noise
from outrider.sampling import Sampling, draw, standardise
from outrider.types import Draft, DraftSession, Session, Shape, Source

CONFIG = "outrider_draft.json"


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a head, and the target it was trained for."""

    kind: str  # feature or blockwise
    hidden_size: int
    inner_size: int
    blocks: int  # feature: stacked blocks per guess; blockwise: k, the guesses per run
    fingerprint: str = ""  # of the target, see models/teacher.py
    gamma: int = 4  # guesses it is best asked for


class Block(nn.Module):
    """A gated feed-forward layer with a residual connection."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-5)
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Head(nn.Module):
    """From the state behind the last token, and that token, to the states behind the next ones."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.state_norm = nn.RMSNorm(size, eps=1e-5)
        self.token_norm = nn.RMSNorm(size, eps=1e-5)
        self.join = nn.Linear(2 * size, size, bias=False)
        self.blocks = nn.ModuleList(Block(size, config.inner_size) for _ in range(config.blocks))

    def read(self, state: Tensor, token: Tensor) -> Tensor:
        """Join a state [..., size] with the embedding of the token that came after it."""
        joined = torch.cat([self.state_norm(state), self.token_norm(token)], -1)
        return state + self.join(joined)  # type: ignore[no-any-return]

    def step(self, state: Tensor, token: Tensor) -> Tensor:
        """Feature: the state behind the next token [..., size]."""
        x = self.read(state, token)
        for block in self.blocks:
            x = block(x)
        return x

    def fan(self, state: Tensor, token: Tensor) -> Tensor:
        """Blockwise: the states behind the next k tokens [..., k, size]."""
        x = self.read(state, token)
        return torch.stack([block(x) for block in self.blocks], -2)


class HeadDrafter:
    """A trained head as a drafter. ``tokens`` [N] are the tokens it can draft."""

    def __init__(self, head: Head, tokens: Tensor, name: str = "head") -> None:
        self.head, self.tokens, self.name = head.eval().requires_grad_(False), tokens, name

    @property
    def gamma(self) -> int:
        return self.head.config.gamma

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        size = None if target.hidden is None else target.hidden.shape[-1]
        if size != self.head.config.hidden_size or target.unembedding is None:
            raise BadOption(
                f"draft {self.name!r} reads hidden states of size {self.head.config.hidden_size}, "
                f"the target shows {size or 'none'}; use the draft with the target it was trained for"
            )
        return _HeadSession(self, rows, shape, target)

    def save(self, folder: Path) -> None:
        weights = {f"head.{k}": v.to(torch.bfloat16).contiguous() for k, v in self.head.state_dict().items()}
        save_file({**weights, "tokens": self.tokens.to(torch.int32)}, str(folder / "model.safetensors"))
        (folder / CONFIG).write_text(json.dumps(asdict(self.head.config), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path, name: str | None = None) -> HeadDrafter:
        require((folder / CONFIG).is_file(), f"no trained draft in {folder}: {CONFIG} is missing", ModelNotFound)
        try:
            config = HeadConfig(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
            weights = load_file(str(folder / "model.safetensors"))
            head = Head(config)
            head.load_state_dict({k[5:]: v.float() for k, v in weights.items() if k.startswith("head.")})
        except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelCorrupt(f"the trained draft in {folder} cannot be read ({reason}); train it again") from error
        return HeadDrafter(head, weights["tokens"].to(torch.int64), name or folder.name)


class _HeadSession(ContextSession):
    def __init__(self, drafter: HeadDrafter, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        assert target.embedding is not None and target.unembedding is not None
        self.target = target
        self.kind = drafter.head.config.kind
        # A copy: the drafter is shared, and another session may run in another dtype.
        self.head = deepcopy(drafter.head).to(device=target.device, dtype=target.unembedding.dtype)
        self.tokens = drafter.tokens.to(target.device)  # [N]
        self.embedding = target.embedding
        self.output = target.unembedding[self.tokens].t().contiguous()  # [size, N]
        self.supposed: Tensor | None = None  # of a fork: [B, size] or fan [B, k, size] in place of the target's states
        self.first: Tensor | None = None  # what ``_first`` found since the last commit

    def admit(self, row: int, prompt: Sequence[int], source: Source | None = None) -> None:
        super().admit(row, prompt, source)
        self.first = None

    def commit(self, tokens: Tensor, count: Tensor) -> None:
        if self.supposed is not None:  # the target has not run these tokens: the head's own states must do
            self.supposed = self._first()[:, 1:] if self.kind == "blockwise" else self._first()
        super().commit(tokens, count)
        self.first = None

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.supposed = None if self.supposed is None else self.supposed.index_select(0, rows)
        self.first = None if self.first is None else self.first.index_select(0, rows)

    def fork(self, rows: Tensor) -> _HeadSession:
        first = self._first()
        other = super().fork(rows)
        base = first if self.kind == "blockwise" else self._states()
        other.supposed = base.index_select(0, rows)
        return other

    def _states(self) -> Tensor:
        """[B, size]: the state behind each row's last token."""
        assert self.target.hidden is not None
        return self.target.hidden if self.supposed is None else self.supposed

    @torch.no_grad()
    def _first(self) -> Tensor:
        """The state behind the first guess [B, size], or behind all that one look gives [B, k, size]; once a step."""
        if self.first is None:
            last = self.embedding[self.context.read(self.context.lengths - 1, 1)[:, 0]]
            if self.kind == "feature":
                self.first = self.head.step(self._states(), last)
            else:
                self.first = self.head.fan(self._states(), last) if self.supposed is None else self.supposed
        return self.first

    @torch.no_grad()
    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        rows = self.context.rows
        if gamma == 0:
            return Draft.empty(rows, self.device)
        tokens, probs = at.new_zeros((rows, 0)), []
        state = self._first()
        if self.kind == "blockwise":
            gamma, fan = min(gamma, state.shape[1]), state
        for k in range(gamma):
            if self.kind == "blockwise":
                state = fan[:, k]
            elif k > 0:
                state = self.head.step(state, self.embedding[tokens[:, -1]])
            logits = state @ self.output  # [B, N]
            token, q = self._draw(logits, sampling, noise, tokens, at[:, k : k + 1])
            tokens = torch.cat([tokens, token[:, None]], 1)
            probs.append(q)
        dense = None if not probs or probs[0] is None else torch.stack([q for q in probs if q is not None], 1)
        return Draft(tokens, dense, self.context.active[:, None].expand(-1, gamma))

    @property
    def device(self) -> torch.device:
        return self.context.device

    def _draw(
        self, logits: Tensor, sampling: Sampling, noise: Noise, guesses: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """A token and the distribution it came from; at temperature 0 a point mass needs no table."""
        plain = not (sampling.penalised or sampling.logit_bias or sampling.processors)
        if plain and sampling.greedy:
            return self.tokens[logits.argmax(-1)], None
        full = torch.full((logits.shape[0], self.vocab_size), -torch.inf, device=self.device)
        full[:, self.tokens] = logits.to(torch.float32)
        q = standardise(full[:, None], sampling, self.context.ahead(guesses), guesses[:, :0])[:, 0]
        return draw(q, noise.race("token", at, q.shape[-1])[:, 0]), q

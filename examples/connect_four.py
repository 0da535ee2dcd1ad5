"""Pondering, made exact: two players of Connect Four think at the same time.

Each player searches the game tree by random playouts and draws a move in proportion to its visits. The reply can
only be thought about once the move is known, so a pair of moves takes two searches in a row. With
``outrider.speculate`` the second player thinks about a guessed move while the first still searches. The guess comes
from a search a tenth as long. Moves are distributed exactly as without guessing.

    python examples/connect_four.py [GAMES] [PLAYOUTS]

plays GAMES games, every pair of moves both ways from the same position, and prints what was gained.
"""

from __future__ import annotations

import math
import os
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random

import outrider
from outrider.speculation import expected_seconds

COLUMNS, ROWS = 7, 6
LINES = [
    [(c + i * dc, r + i * dr) for i in range(4)]
    for c in range(COLUMNS)
    for r in range(ROWS)
    for dc, dr in ((1, 0), (0, 1), (1, 1), (1, -1))
    if c + 3 * dc < COLUMNS and 0 <= r + 3 * dr < ROWS
]
MASKS = [sum(1 << (c * ROWS + r) for c, r in line) for line in LINES]
CHEAP = 10  # a guess comes from a search this many times shorter
LAST = 14  # moves of a game; later positions are mostly decided, and searched in no time

Moves = tuple[int, ...]  # the columns played so far: a whole position, and easy to send to another process
Visits = dict[int, int]  # how often the search tried each move


class Board:
    """Stones of both players as bits, six to a column."""

    def __init__(self, moves: Moves = ()) -> None:
        self.stones, self.heights, self.turn, self.won = [0, 0], [0] * COLUMNS, 0, False
        for move in moves:
            self.play(move)

    def play(self, column: int) -> None:
        stone = 1 << (column * ROWS + self.heights[column])
        mine = self.stones[self.turn] | stone
        self.stones[self.turn] = mine
        self.heights[column] += 1
        self.won = any(mask & stone and mine & mask == mask for mask in MASKS)
        self.turn = 1 - self.turn

    def moves(self) -> list[int]:
        return [] if self.won else [c for c in range(COLUMNS) if self.heights[c] < ROWS]

    def finish(self, random: Random) -> float:
        """Play on at random: 1 if the player to move wins, 0 if the other does, a half for a draw."""
        me = self.turn
        while moves := self.moves():
            self.play(random.choice(moves))
        return 0.5 if not self.won else float(self.turn != me)


def search(moves: Moves, playouts: int) -> Visits:
    """Tree search with upper confidence bounds; the same visits every time, so that it is a function."""
    random = Random(hash(moves))
    visits: dict[Moves, int] = {}
    wins: dict[Moves, float] = {}  # for the player who moved into the position
    for _ in range(playouts):
        board, path = Board(moves), [moves]
        while options := [(*path[-1], move) for move in board.moves()]:
            fresh = [option for option in options if option not in visits]
            step = random.choice(fresh) if fresh else most_promising(options, visits, wins)
            board.play(step[-1])
            path.append(step)
            if fresh:
                break
        result = 1 - board.finish(random)
        for position in reversed(path):
            visits[position] = visits.get(position, 0) + 1
            wins[position] = wins.get(position, 0.0) + result
            result = 1 - result
    return {move: visits.get((*moves, move), 0) for move in Board(moves).moves()}


def most_promising(options: list[Moves], visits: dict[Moves, int], wins: dict[Moves, float]) -> Moves:
    total = 2 * math.log(sum(visits[option] for option in options))
    return max(options, key=lambda o: wins[o] / visits[o] + math.sqrt(total / visits[o]))


def reply(moves: Moves, playouts: int, move: int) -> Visits:
    """What the other player makes of a move: the visits of its replies; none where the game is over."""
    after = (*moves, move)
    return search(after, playouts) if Board(after).moves() else {}


@dataclass
class Tally:
    """Seconds of all pairs of moves, and what became of the guesses."""

    pairs: int = 0
    plain: float = 0.0
    speculative: float = 0.0
    predicted: float = 0.0
    kept: int = 0
    overlap: float = 0.0

    def add(self, plain: float, speculative: float, done: outrider.Speculated[int, Visits]) -> None:
        self.pairs += 1
        self.plain += plain
        self.speculative += speculative
        self.predicted += expected_seconds(done.overlap, plain / 2, plain / 2, plain / 2 / CHEAP)
        self.kept += done.kept
        self.overlap += done.overlap


def pair(
    moves: Moves, playouts: int, executor: Executor, guesses: int, random: Random
) -> tuple[outrider.Speculated[int, Visits], float]:
    """A move and what the other player makes of it, with the seconds it took."""
    cheap = max(COLUMNS, playouts // CHEAP) if guesses else COLUMNS
    began = time.perf_counter()
    done = outrider.speculate(
        partial(search, moves, playouts), partial(search, moves, cheap), partial(reply, moves, playouts), executor,
        guesses=guesses, seed=random,
    )  # fmt: skip
    return done, time.perf_counter() - began


def play(games: int, playouts: int, executor: Executor) -> Tally:
    random, tally = Random(0), Tally()
    for _ in range(games):
        moves: Moves = (random.randrange(COLUMNS), random.randrange(COLUMNS))  # no two games the same
        while len(moves) < LAST and Board(moves).moves():
            _, plain = pair(moves, playouts, executor, 0, random)
            done, speculative = pair(moves, playouts, executor, 1, random)
            tally.add(plain, speculative, done)
            moves = (*moves, done.outcome)
            if done.value:
                moves = (*moves, random.choices(list(done.value), list(done.value.values()))[0])
    return tally


def main(games: int = 3, playouts: int = 1000) -> None:
    with ProcessPoolExecutor(2) as executor:
        list(executor.map(search, [(), ()], [200, 200]))  # both processes start outside the clock
        tally = play(games, playouts, executor)
    n = tally.pairs
    print(f"{n} pairs of moves, {playouts} playouts a search, {os.cpu_count()} cores")
    print(f"plain        {tally.plain / n:.3f} s a pair")
    print(f"speculative  {tally.speculative / n:.3f} s a pair: {tally.plain / tally.speculative:.2f} times as fast")
    print(f"predicted    {tally.predicted / n:.3f} s a pair: {tally.plain / tally.predicted:.2f} times as fast")
    print(f"guesses kept {tally.kept} of {n} ({tally.kept / n:.2f}), expected {tally.overlap / n:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))

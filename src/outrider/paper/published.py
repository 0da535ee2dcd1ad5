"""What the papers print, as numbers: the reference of every table here. Where a figure is drawn only, nothing is read
off it."""

from __future__ import annotations

from dataclasses import dataclass

LEVIATHAN = "Leviathan et al. 2023"
CHEN = "Chen et al. 2023"
TULSIAN = "Tulsian et al. 2024"


@dataclass(frozen=True)
class Speed:
    """A row of Leviathan's Tables 2 and 4: T5-XXL on a TPU-v4, one request at a time."""

    task: str
    draft: str
    temperature: int
    gamma: int
    alpha: float
    cost: float  # c
    expected: float  # by Theorem 3.8
    speedup: float


SPEEDS = (
    Speed("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Speed("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Speed("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Speed("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Speed("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Speed("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Speed("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Speed("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Speed("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Speed("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Speed("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Speed("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)

BIGRAM = Speed("EnDe", "bigram", 0, 3, 0.2, 0.0, 1.25, 1.25)
"""Sections 3.6 and 4.2: what the theorem gives for the bigram table. Its speed-up is worked out there, not timed."""

TABLE_1 = (  # alpha, gamma, operations, speed
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
)

ALPHAS = {  # Table 3: target, draft -> alpha at temperature 0 and at 1
    ("GPT-like (97M)", "unigram"): (0.03, 0.03),
    ("GPT-like (97M)", "bigram"): (0.05, 0.05),
    ("GPT-like (97M)", "GPT-like (6M)"): (0.88, 0.89),
    ("T5-XXL (EnDe)", "unigram"): (0.08, 0.07),
    ("T5-XXL (EnDe)", "bigram"): (0.20, 0.19),
    ("T5-XXL (EnDe)", "T5-small"): (0.75, 0.62),
    ("T5-XXL (EnDe)", "T5-base"): (0.80, 0.68),
    ("T5-XXL (EnDe)", "T5-large"): (0.82, 0.71),
    ("T5-XXL (CNNDM)", "unigram"): (0.13, 0.08),
    ("T5-XXL (CNNDM)", "bigram"): (0.23, 0.16),
    ("T5-XXL (CNNDM)", "T5-small"): (0.65, 0.53),
    ("T5-XXL (CNNDM)", "T5-base"): (0.73, 0.55),
    ("T5-XXL (CNNDM)", "T5-large"): (0.74, 0.56),
    ("LaMDA (137B)", "LaMDA (100M)"): (0.61, 0.57),
    ("LaMDA (137B)", "LaMDA (2B)"): (0.71, 0.71),
    ("LaMDA (137B)", "LaMDA (8B)"): (0.75, 0.74),
}

LENIENCES = (1.0, 0.5, 0.3, 0.1)
"""Of Table 5. Asked for besides: 0.8, which the paper does not have."""

LENIENT_ALPHAS = {  # Table 5: T5-XXL, English to German, temperature 1; draft -> alpha by LENIENCES
    "unigram": (0.07, 0.10, 0.11, 0.16),
    "bigram": (0.19, 0.23, 0.25, 0.32),
    "T5-small": (0.62, 0.71, 0.76, 0.84),
    "T5-base": (0.68, 0.80, 0.83, 0.90),
}
LENIENT_GREEDY = (0.75, 0.75, 0.80, 0.87)
"""A.5's greedy form: T5-small at temperature 0, by LENIENCES."""

LENIENT_COST = 0.015
"""c of A.5's improvement factors."""
LENIENT_GAINS = {1: (2.5, 3.1, 3.6, 5.0), 0: (3.3, 3.3, 3.9, 4.9)}
"""A.5's improvement factors by temperature and LENIENCES. At temperature 1 the paper does not name gamma."""
LENIENT_GAMMA = 8
"""Of those at temperature 0."""

FIGURE_1 = (38, 9)
"""Tokens of the sentence in Figure 1, and runs of the target that it took."""

CHEN_TABLE = {  # Table 1: task, sampling -> quality plain and speculative, ms per token of both, speed-up
    ("XSum, ROUGE-2", "nucleus 0.8"): (0.112, 0.114, 14.1, 7.52, 1.92),
    ("XSum, ROUGE-2", "greedy"): (0.157, 0.156, 14.1, 7.00, 2.01),
    ("HumanEval, pass@1", "nucleus 0.95, temperature 0.8"): (0.451, 0.470, 14.1, 5.73, 2.46),
}
CHEN_GAMMA = 4
"""Guesses of their Table 1 (they call it K)."""
CHEN_FASTEST = 3
"""K of Figure 1's caption: where XSum with nucleus sampling is fastest."""

TULSIAN_BASE = {  # Table 1: task, model -> seconds, BLEU
    ("EnDe", "T5-large"): (6.39, 0.717),
    ("EnDe", "T5-small"): (0.75, 0.554),
    ("CNNDM", "T5-large"): (216.62, 0.38),
    ("CNNDM", "T5-small"): (12.02, 0.35),
}
TULSIAN_FIXED = {  # Table 2: task, gamma -> BLEU, alpha, speed-up
    ("EnDe", 3): (0.73, 0.79, 2.68),
    ("EnDe", 7): (0.68, 0.55, 2.56),
    ("CNNDM", 3): (0.37, 0.48, 2.11),
    ("CNNDM", 7): (0.36, 0.33, 2.17),
}
TULSIAN_BEAMS = {3: (0.73, 0.79, 0.79), 5: (0.72, 0.75, 0.45)}
"""Table 3: beams -> BLEU, alpha, speed-up; English to German."""
TULSIAN_VARYING = {"EnDe": (0.71, 0.68, 2.61), "CNNDM": (0.35, 0.47, 2.33)}
"""Table 4: task -> BLEU, alpha, speed-up; all with their gradient rule."""
TULSIAN_HIERARCHY = {"large + small": (0.723, 2.68), "large + base": (0.730, 1.13), "hierarchy": (0.728, 1.46)}
"""Table 5: BLEU and speed-up; English to German."""

"""Pairs trained from scratch, on running text or on pairs of sentences of any length.

``outrider distill`` trains a draft for a model that exists; the recipes train target and draft from nothing, and so
have a loop of their own. Nothing of transformers is imported here: a model is whatever is called like its models.
"""

from pretrain.acceptance import Rate, Written, acceptance, count_tables, held_out_loss, table_weights, write
from pretrain.folder import open_run, pack, save_model, say
from pretrain.loop import Effort, Progress, fit
from pretrain.losses import Trunk, cross_entropy, from_teacher, in_pieces
from pretrain.text import IGNORED, Batch, Blocks, Data, Pairs, Ragged, encode, train_tokenizer

__all__ = [
    "IGNORED",
    "Batch",
    "Blocks",
    "Data",
    "Effort",
    "Pairs",
    "Progress",
    "Ragged",
    "Rate",
    "Trunk",
    "Written",
    "acceptance",
    "count_tables",
    "cross_entropy",
    "encode",
    "fit",
    "from_teacher",
    "held_out_loss",
    "in_pieces",
    "open_run",
    "pack",
    "save_model",
    "say",
    "table_weights",
    "train_tokenizer",
    "write",
]

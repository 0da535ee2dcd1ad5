"""The ways to run a head's layers, one module each; ``choice.py`` says which is used when.

A further one is a module with two classes, ``HeadWeights`` and ``HeadBackend`` (see ``backend.py``), a line in this
table, and a rule in ``choice.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.drafters.head.backend import WeightsFor
from outrider.drafters.head.backends.numba_backend import NumbaWeights
from outrider.drafters.head.backends.numpy_backend import NumpyWeights
from outrider.drafters.head.backends.torch_weights import TorchWeights
from outrider.drafters.head.backends.triton_backend import TritonWeights

BY_NAME: Mapping[str, WeightsFor] = {
    "torch": TorchWeights,
    "triton": TritonWeights,
    "numpy": NumpyWeights,
    "numba": NumbaWeights,
}

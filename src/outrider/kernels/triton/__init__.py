"""Triton kernels for what transformers does in many small steps. Imported only where there is a GPU."""

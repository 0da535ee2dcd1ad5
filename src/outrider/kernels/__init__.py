"""Compute kernels: Triton for GPUs, numba for CPUs, and torch linear layers in other layouts."""

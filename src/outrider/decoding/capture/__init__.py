"""CUDA graph capture of whole decoding steps, and the check that a step can be captured."""

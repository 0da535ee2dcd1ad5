"""What numba compiles for a CPU: products, attention, whole models and heads. Import what is inside only where needed:
numba is heavy and comes with the extra ``cpu``."""

"""A plan before speculating: what is measured once, and the speed-up it predicts for every drafter, gamma and batch."""

"""Beam search: its rules, the tree of guesses that one target run scores, and the search itself."""

"""Verification rules: which guesses are kept, and which token follows them."""

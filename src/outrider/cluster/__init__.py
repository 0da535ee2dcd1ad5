"""Batches of prompts from one process to many machines, and functions on a Ray cluster."""

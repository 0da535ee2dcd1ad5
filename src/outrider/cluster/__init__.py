"""Batches of prompts from one process to many machines, replicas of the server, and functions on a Ray cluster."""

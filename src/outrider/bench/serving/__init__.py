"""A server under load: clients that send real prompts, what they saw, and what it predicts for many replicas."""

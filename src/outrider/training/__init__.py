"""Training of drafts: distillation of small models and heads from a target."""

"""Per-sample gradients: what is linearized."""

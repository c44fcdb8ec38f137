"""The laboratory: the paper's experiments, run, measured and judged. An application of the library."""

"""The laboratory: the paper's experiments, run, measured and judged. An application of the library."""

import os

# Products of matrices then do not depend on where in memory these lie, so that a run's numbers do not depend on which
# runs stand beside it. MKL, where torch uses it, reads this before its first product; it costs nothing measurable.
os.environ.setdefault("MKL_CBWR", "AUTO")

# For worker processes, whose C library reads them as it starts: memory that was freed is kept for the next tensor. To
# give it back and ask for it anew at every operation would take up to a third of a step.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 30))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 32))

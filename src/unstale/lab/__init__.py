"""The laboratory: the paper's experiments, run, measured and judged. An application of the library."""

import os

# Products of matrices then do not depend on where in memory these lie, so that a run's numbers do not depend on which
# runs stand beside it. MKL, where torch uses it, reads this before its first product; it costs nothing measurable.
os.environ.setdefault("MKL_CBWR", "AUTO")

"""The laboratory: runs the experiments of the paper, measures them, and tests its claims. It is built on unstale."""

import os

# Makes matrix products of MKL independent of memory alignment, so that the results of a run do not depend on the other
# runs of its batch. MKL reads it before its first product. The cost is not measurable.
os.environ.setdefault("MKL_CBWR", "AUTO")

# For worker processes, whose C library reads them at the start: freed memory is reused for the next tensor. Returning
# it to the system and requesting it again in every operation would take up to a third of a step.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 30))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 32))

"""The terms of the report, explained."""

from __future__ import annotations

from ..analysis.divergence import MAX_GROWTH
from ..claims.contrast import EQUIVALENCE_MARGIN
from ..claims.judging import MIN_SEEDS

TITLE = "Correcting Momentum in Temporal Difference Learning: a reproduction"
GLOSSARY: dict[str, str] = {
    "Answers": "a claim holds if all its parts hold, holds in part if some do, does not hold if none does and at least "
    "one is refuted, and is undecided otherwise. Parts that would also hold if nothing differed do not count if the "
    "others fail. “Shown”: the paper draws no conclusion from the figure. “Not run”: "
    "nothing was measured.",
    "Two readings": "the paper's text and the authors' code differ in places, such as the factor 1-β in the momentum. "
    "“As described in the text” follows the text, “as the authors ran it” the code. Claims on which they differ have "
    "two answers.",
    "Reduced scale": "fewer seeds, steps or settings than in the paper. Such runs cannot refute a claim, and confirm "
    "it at most in part.",
    "μ, μ*, μ̂, μ̂ diag": "standard momentum; the oracle, which recomputes all remembered gradients at the current "
    "parameters; the paper's full correction; its diagonal approximation. “μ̂ bounded” is the full correction with "
    "this library's bound on its size; CorrectedAdam and CorrectedSGD are the library's optimizers.",
    "Adam, …/√": "Adam divides momentum by the root of the mean squared gradient; methods with “/√” divide their "
    "momentum by the same denominator. “literal” is the paper's recursion, which uses α μ̂ as the last step although "
    "Adam divided it; the other variants use the actual step. “window” keeps the gradients of the last 2/(1-β) batches "
    "instead of a matrix.",
    "Ratio": "the typical ratio of the errors of a and b in a pair: 0.54x means that the error of a is 0.54 times that "
    "of b. A pair is two runs with the same seed and setting: same data, same initial weights.",
    "CI": "95 % confidence interval, by a bootstrap that resamples seeds with all their runs; so are the bands in the "
    "figures.",
    "p, paired and Holm": "a t-test over seeds on the logarithms of the ratios, which decides; with Holm's correction "
    f"over all comparisons of a verdict, at a level of 0.05. With fewer than {MIN_SEEDS} seeds a comparison is "
    "undecided.",
    "p, Welch": "Welch's test over all runs. It is shown because the paper used it; it decides nothing.",
    "Equivalence": f"“have about the same error” holds if the interval of the ratio lies within a factor of "
    f"{EQUIVALENCE_MARGIN:g} of 1, even if the small difference is significant.",
    "Diverged": f"a run that was stopped because its error exploded, or whose final error is more than {MAX_GROWTH:g} "
    "times that before the first step. Errors and stability are judged apart: learning rates at which "
    "a method diverges in more than a quarter of its runs are left out of the comparison of errors, and reported. "
    "At the other learning rates, a diverged run counts as the largest error of the verdict. "
    "Figures: means, which the paper plots, are over the runs that did not diverge, and say how many did. A "
    "cross marks where a line ends because too many runs diverged.",
    "IQM": "interquartile mean, the mean of the middle half of the runs; infinite if more than a quarter diverged.",
    "P(a < b)": "the share of pairs in which a has the lower value.",
    "True values": "of MsPacman: the mean return of many rollouts from the same state; the variance of that mean is "
    "subtracted from the error. A single sampled return, which the paper uses, adds noise.",
}

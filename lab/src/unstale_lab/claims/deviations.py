"""Where the experiments here differ from the paper's text or from the authors' public code, in any reading."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """One difference."""

    subject: str
    theirs: str
    ours: str


DEVIATIONS = (
    Deviation(
        "Reference values, classic control",
        "a network fitted to returns",
        "exact: rollouts of the policy (Cartpole, whose policy is random: means of many)",
    ),
    Deviation(
        "Errors, as the authors ran it",
        "on the states of the current training batch",
        "on a fixed set of states of the same distribution, which is less noisy; in claim 14 on the evaluation set, "
        "because online and replay visit different states",
    ),
    Deviation(
        "Oracle, as described in the text",
        "weights cut off after 2/(1-β) batches, so that they sum to 0.87 or 0.88",
        "the same batches, with weights scaled to the sum of momentum's",
    ),
    Deviation(
        "Oracle, as the authors ran it",
        "2/(1-β) + 1 batches, rounded up: 22 or 201",
        "20 or 200 batches",
    ),
    Deviation(
        "Policies",
        "DQN experts for Acrobot and Cartpole, Rainbow for MsPacman",
        "linear or small policies found by the cross-entropy method, and PPO for MsPacman",
    ),
    Deviation(
        "One-step targets from replay",
        "the code never samples the terminal transition",
        "all transitions are sampled",
    ),
    Deviation(
        "MsPacman, replay",
        "the code stores the next frames with the current action",
        "the next frames with the next action, as Sarsa needs",
    ),
    Deviation(
        "MsPacman, network",
        "the appendix has 64 channels, which gives 19.2 million parameters; the text has 4.8 million",
        "32 channels, 4.8 million parameters",
    ),
    Deviation(
        "Value drift",
        "the code weights it by β to the power of the age",
        "unweighted, as in the text",
    ),
    Deviation(
        "MsPacman, drift and cosine",
        "over the samples of the last 2/(1-β) batches: 20, or 200 for Adam",
        "over the last 20 batches, because the parameters of each are stored",
    ),
    Deviation(
        "Value drift, figure 5",
        "shown over the training, without a number",
        "judged on geometric means over the training; with arithmetic means, which the first steps dominate, "
        "values with RBF features drift less than with MLPs as described in the text, but by less than a factor of 5, "
        "and more as the authors ran it",
    ),
    Deviation(
        "Diverged runs",
        "not mentioned",
        "counted: stopped because the error exploded, or ended with more than ten times the initial error",
    ),
    Deviation(
        "Figures 6 and 7, β and batch size",
        "not stated",
        "β 0.99 and batches of 16, as in figure 5",
    ),
    Deviation(
        "Acrobot and Cartpole (claims 16 and 17)",
        "“very similar” to Mountain Car",
        "judged by the order of the methods' errors, which is that of figure 3; n-step targets are “needed” if they "
        "halve the error",
    ),
    Deviation(
        "Sizes of differences",
        "“much” and “very little” without numbers",
        "much: a factor of 1.5 (layers, frozen targets); very little: a fifth (drift with RBF features)",
    ),
    Deviation(
        "Cosines of Taylor expansions (claims 9 and 21), as the authors ran it",
        "the code does not measure them",
        "as described in the text, with the half-strength Taylor term of the code",
    ),
    Deviation(
        "Taylor expansions at random initialization (claim 21)",
        "not defined",
        "the cosine over the first 20 steps, because at step 0 no parameter has moved and all cosines are 1",
    ),
    Deviation(
        "RBF width",
        "the appendix has a variance of σ²/grid; the code takes σ as a standard deviation in grid cells",
        "σ² in squared grid cells",
    ),
    Deviation(
        "SVHN, images",
        "the code subtracts the mean colour",
        "the code's, and divided by the standard deviation, in both readings",
    ),
    Deviation(
        "SVHN, correction",
        "the code has the full matrix of mean gradients; the text has the diagonal",
        "the diagonal, in both readings",
    ),
    Deviation(
        "Regression, target",
        "the code has 0.322 and -0.102 where the text has 0.32 and -0.1",
        "the text's, in both readings",
    ),
    Deviation(
        "Mountain Car online",
        "the code has 10 seeds; the text has 50",
        "50, in both readings",
    ),
    Deviation(
        "Corrections over Adam's denominator",
        "no limit",
        "entries of a step are limited to 10 learning rates, which acts on one entry in ten million",
    ),
    Deviation(
        "Full corrections over Adam's denominator",
        "no bound",
        "bounded by the norm of the momentum, this library's default (figure 9, claims 13, 22 and 23)",
    ),
    Deviation(
        "MsPacman, Taylor term",
        "the code has the outer product of mean gradients, in an optimizer that does not work",
        "the mean of outer products, in both readings",
    ),
    Deviation(
        "MsPacman, errors of figure 17 and claim 22",
        "against sampled returns",
        "against true values, which are less noisy; sampled returns are in the notes",
    ),
    Deviation(
        "Some layers only (figure 13)",
        "the code has no working version",
        "as described in the text, and with the conventions of the rest of the code",
    ),
    Deviation(
        "Control",
        "the paper gives neither steps nor scores",
        "PPO and 5-step Sarsa on MsPacman, with the numbers of steps that the figures state",
    ),
    Deviation(
        "Diagonal correction in control (claims 13 and 23)",
        "the recursion takes α μ̂ for the last step, although Adam divides it",
        "the last step that was really made (displacement form)",
    ),
    Deviation(
        "Second derivatives (claim 20)",
        "the strength of the Taylor term is not stated",
        "full strength, as described in the text, in both readings",
    ),
)

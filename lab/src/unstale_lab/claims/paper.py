"""The paper's 25 claims."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    number: int
    figure: str  # in the paper
    problem: str
    statement: str


CLAIMS = (
    Claim(1, "1", "Regression", "μ* differs little from μ; μ̂ does not differ from μ"),
    Claim(2, "2", "SVHN", "Only the training losses of μ* and μ differ (μ* is worse); test losses do not"),
    Claim(3, "3", "Mountain Car, replay", "After 5,000 steps all four methods differ from one another"),
    Claim(
        4,
        "4",
        "Mountain Car, online",
        "μ* and μ̂ beat μ and μ̂ diag; μ differs from μ̂ diag; μ* and μ̂ do not differ",
    ),
    Claim(5, "5", "Mountain Car, drift", "Values drift very little with RBF features, and a lot with MLPs"),
    Claim(6, "12", "Mountain Car, RBFs", "With sparse RBFs all methods perform the same, including the oracle"),
    Claim(7, "6", "Mountain Car, RBFs", "The wider the kernels, the larger the gap between μ̂ and μ"),
    Claim(8, "7", "Mountain Car, RBFs", "The error rises with the mean drift"),
    Claim(
        9,
        "8",
        "Mountain Car, agreement",
        "Corrected gradients agree with the true gradients in training, and less so as the model converges",
    ),
    Claim(
        10,
        "13",
        "Mountain Car, layers",
        "Correcting the bottom layers matters far more than correcting the top ones; correcting all layers is best; "
        "correcting both ends is no better than the bottom alone",
    ),
    Claim(11, "9", "MsPacman", "Diagonal correction with Adam's denominator beats Adam, without a target network"),
    Claim(
        12,
        "16, 17",
        "Mountain Car and MsPacman, frozen targets",
        "Frozen targets learn much more slowly; on MsPacman they are more precise in the end",
    ),
    Claim(
        13,
        "–",
        "Atari, control",
        "A corrected critic gains little or no return; its drift is two to three times smaller; agreement is about 0.1",
    ),
    Claim(
        14,
        "10",
        "Mountain Car, batch size",
        "Batches of one hurt μ̂ diag, but do not alone explain its poor online result",
    ),
    Claim(15, "11", "Mountain Car, momentum", "The methods depend on β in different ways"),
    Claim(16, "14", "Acrobot, 5-step", "Similar to Mountain Car; n-step targets are needed to converge"),
    Claim(17, "15", "Cartpole, 3-step", "Similar to Mountain Car; n-step targets are needed to converge"),
    Claim(18, "18", "Mountain Car, 50,000 steps", "All methods converge to the value function"),
    Claim(19, "19", "Mountain Car, learning rate", "The methods depend on α in different ways"),
    Claim(20, "–", "Small MLP", "Keeping the second derivatives in Z has no visible effect"),
    Claim(
        21,
        "–",
        "Small MLP, activations",
        "tanh, ELU and SELU have more stable Taylor expansions; Leaky ReLU learns best",
    ),
    Claim(
        22,
        "–",
        "MsPacman, small model",
        "Full correction beats Adam; most of its extra time is spent on backward passes, not on Z",
    ),
    Claim(
        23,
        "–",
        "MsPacman, control",
        "Parallel environments without replay or target network give decent agents with the small model",
    ),
    Claim(24, "–", "Linear value function", "Z does not depend on θ, so μ̂ = μ*"),
    Claim(
        25,
        "–",
        "Cost",
        "Two more backward passes; 2n + n² stored elements for the full correction, 3n for the diagonal",
    ),
)

"""The paper's 25 claims, in our words, with the place where the paper makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a figure from which it draws no conclusion."""

    number: int
    where: str  # in the paper
    subject: str
    statement: str
    figures: tuple[str, ...]  # names of the figures that answer it, all of which are needed
    has_two_readings: bool = True  # whether what the authors' code does differently was run, too


CLAIMS = (
    Claim(
        1,
        "section 3.1, figure 1",
        "Regression",
        "The oracle μ* differs from momentum μ, but by little; corrected momentum μ̂ does not differ from μ.",
        ("fig1",),
    ),
    Claim(
        2,
        "section 3.1, figure 2",
        "SVHN",
        "Only training losses differ: that of μ* is worse than those of μ and μ̂ diag; test losses do not differ.",
        ("fig2",),
    ),
    Claim(
        3,
        "section 3.2, figure 3",
        "Mountain Car, replay",
        "After 5,000 steps μ, μ*, μ̂ and μ̂ diag all differ from one another.",
        ("fig3",),
    ),
    Claim(
        4,
        "section 3.2, figure 4",
        "Mountain Car, online",
        "μ* and μ̂ differ from μ and μ̂ diag (in the figure they are better), and these from each other; μ* and μ̂ do not "
        "differ.",
        ("fig4",),
    ),
    Claim(
        5,
        "section 3.2, figure 5",
        "Mountain Car, drift",
        "Target values drift very little with RBF features compared to MLPs.",
        ("fig5",),
    ),
    Claim(
        6,
        "section 3.2, figure 12",
        "Mountain Car, RBF features",
        "With sparse RBF features all methods, the oracle included, perform virtually the same.",
        ("fig12",),
    ),
    Claim(
        7,
        "section 3.2, figure 6",
        "Mountain Car, RBF features",
        "The wider the kernels, the larger the drift, and the larger the gap in error between μ̂ and μ.",
        ("fig6",),
    ),
    Claim(
        8,
        "section 3.2, figure 7",
        "Mountain Car, RBF features",
        "Over kernel widths, the drift of target values correlates with the error.",
        ("fig7",),
    ),
    Claim(
        9,
        "section 3.2, figure 8",
        "Mountain Car, Taylor expansion",
        "The cosine similarity of Taylor-corrected gradients with the true ones is close to 1 throughout training, and "
        "lower as the model converges.",
        ("fig8",),
    ),
    Claim(
        10,
        "section 3.2, figure 13",
        "Mountain Car, layers",
        "Correcting the bottom layers is much better than correcting the top layers; correcting all is best; "
        "correcting both ends is no better than the bottom alone.",
        ("fig13",),
    ),
    Claim(
        11,
        "section 3.2, figure 9",
        "MsPacman",
        "In policy evaluation on MsPacman, Adam with the diagonal correction has a lower error than Adam; neither uses "
        "a target network.",
        ("fig9",),
        has_two_readings=False,
    ),
    Claim(
        12,
        "section 3.2, figures 16 and 17",
        "Frozen targets",
        "Frozen targets learn much more slowly than the baseline; on MsPacman they are more precise after a very long "
        "time.",
        ("fig16", "fig17"),
    ),
    Claim(
        13,
        "section 3.2",
        "MsPacman, control",
        "Correcting momentum in PPO's critic or in 5-step Sarsa improves returns marginally at best; target values "
        "drift 2 to 3 times less; the cosine similarity of corrected and true gradients is about 0.1.",
        ("claim13",),
        has_two_readings=False,
    ),
    Claim(
        14,
        "section 3.2, figure 10",
        "Mountain Car, batch size",
        "Batches of 1 make μ̂ diag significantly worse, but do not fully explain its poor online result.",
        ("fig10",),
    ),
    Claim(
        15,
        "appendix C, figure 11",
        "Mountain Car, momentum",
        "Shows the error over β; no conclusion is drawn.",
        ("fig11",),
    ),
    Claim(
        16,
        "section 3.2, appendix D, figure 14",
        "Acrobot",
        "Results are very similar to Mountain Car's; targets of more than one step are needed to converge.",
        ("fig14",),
    ),
    Claim(
        17,
        "section 3.2, appendix D, figure 15",
        "Cartpole",
        "Results are very similar to Mountain Car's; targets of more than one step are needed to converge.",
        ("fig15",),
    ),
    Claim(
        18,
        "appendix C, figure 18",
        "Mountain Car, 50,000 steps",
        "With ten times the steps, the methods gradually converge to the value function.",
        ("fig18",),
    ),
    Claim(
        19,
        "appendix C, figure 19",
        "Mountain Car, learning rate",
        "Shows the error over α; no conclusion is drawn.",
        ("fig19",),
    ),
    Claim(
        20,
        "section 4",
        "Small MLP",
        "Leaving the second derivatives out of Z has a negligible effect in toy settings.",
        ("claim20",),
        has_two_readings=False,
    ),
    Claim(
        21,
        "appendix D",
        "Activations",
        "tanh, ELU and SELU have more stable Taylor expansions at random initialization; Leaky ReLU learns best.",
        ("claim21",),
    ),
    Claim(
        22,
        "appendix D",
        "MsPacman, small network",
        "On a small network, Adam with the full correction has a lower error than Adam; most of its extra time goes "
        "into backward passes, not Z.",
        ("claim22", "claim22_time"),
        has_two_readings=False,
    ),
    Claim(
        23,
        "appendix D",
        "MsPacman, control, small network",
        "With 4 or more parallel games and 5-step Sarsa, a small network trains decent agents without replay or target "
        "network, with Adam and with the correction.",
        ("claim23",),
        has_two_readings=False,
    ),
    Claim(
        24,
        "appendix B.3",
        "Linear value function",
        "Z does not depend on θ. (It follows that the Taylor expansion is exact, and μ̂ equals μ*.)",
        ("claim24",),
        has_two_readings=False,
    ),
    Claim(
        25,
        "section 4",
        "Cost",
        "Two more backward passes per batch; 2n + n² more stored elements for the full correction, 3n for the "
        "diagonal, with n parameters.",
        ("claim25",),
        has_two_readings=False,
    ),
)

"""Explain in words how the page judges runs."""

from rdm_solo.report.verdicts import FINAL_EPOCHS, MIN_DIRECTIONAL, MIN_SORTED
from rdm_solo.spectra.collapse import DESTROYED, IN_A_ROW, MIN_GAP, RECOVERY_EPOCHS, WRONG_WAY
from rdm_solo.spectra.collapse import RULES as COLLAPSE

_KINDS = " ".join(
    f"{rule.kind.capitalize()}: {rule.definition}." for rule in COLLAPSE if rule.kind != WRONG_WAY
)

RULES = (
    "Means, bands and n count the runs with the most epochs in each setting; verdicts also count "
    "the runs that diverged. All other runs are named, drawn as thin lines, and judged one by one "
    "in the table of all runs.",
    "The target leads in an epoch where its effective rank is above the online branch's by more "
    f"than {100 * MIN_GAP:g} %. Yes means in at least 95 % of the measured epochs, and that the "
    f"online branch did not lead in all of the last {FINAL_EPOCHS}. A lead is not scored if there "
    "is no filter, if the filter can act in either direction, or after a collapse. For contrastive "
    "and redundancy-reduction methods and ReSSL, which avoid collapse in other ways, we report the "
    "gap and the filter but do not judge them.",
    f"The filter is low-pass where Spearman's rank correlation of the last epoch's curve with the "
    f"target's eigenvalues is at least {MIN_SORTED:g} for sorted eigenvalues and at least "
    f"{MIN_DIRECTIONAL:g} along the target's eigenvectors, which is the stricter test: the sorted "
    "curve rises wherever the target's spectrum is flatter, whatever its directions.",
    f"A run, or its outputs, collapsed if one of these holds in the last {IN_A_ROW} measured "
    f"epochs. {_KINDS} Only a {DESTROYED} is a verdict on the features; they can survive the "
    "collapse of the outputs, and the other rules also hold for many healthy runs. The "
    "outputs are the projections; variance and rank are measured around each step's mean. For "
    "methods with a softmax, the variance is measured on the logits and the rank on the last "
    "layer's input. We do not judge a value that is recovering (at its current growth it would "
    f"pass the bound within {RECOVERY_EPOCHS} epochs), nor a run whose outputs are mostly their "
    f"mean. In the warm-up only a {DESTROYED} is judged. Warnings during training use the same "
    "rules with the run's own bounds.",
    "The best setting has the highest mean over its seeds. Another setting is within one standard "
    "deviation if the two means differ by no more than the larger of the two standard deviations; "
    "the seeds then do not separate them. Settings in which all runs collapsed or diverged are not "
    "ranked. A high rank or a wide gap does not imply a high accuracy.",
)

"""How the answers and verdicts are made, in words for the foot of the page."""

from rdm_solo.report.verdicts import DIRECTIONAL, LAST, SORTED
from rdm_solo.spectra.collapse import DESTROYED, IN_A_ROW, MIN_GAP, RECOVERY_EPOCHS, WRONG_WAY
from rdm_solo.spectra.collapse import RULES as COLLAPSE

_KINDS = " ".join(
    f"{rule.kind.capitalize()}: {rule.definition}." for rule in COLLAPSE if rule.kind != WRONG_WAY
)

RULES = (
    "Means, bands and n count the runs with the most epochs in each setting; the answers also "
    "count the runs that diverged. Every other run is named, drawn as a thin line over its epochs, "
    "and judged alone in the table of every run.",
    "The target leads in an epoch where its effective rank is above the online branch's by more "
    f"than {100 * MIN_GAP:g} %. Yes means in at least 95 % of the measured epochs, and that the "
    f"online branch did not lead in all of the last {LAST}. A lead is not scored without a filter, "
    "with one that may point either way, or after a collapse. For contrastive and "
    "redundancy-reduction methods and ReSSL, which avoid collapse in other ways, we report the gap "
    "and the filter but do not judge them.",
    f"The filter is low-pass where Spearman's rank correlation of the last epoch's curve with the "
    f"target's eigenvalues is at least {SORTED:g} for sorted eigenvalues and at least "
    f"{DIRECTIONAL:g} along the target's eigenvectors, which is the stricter test: the sorted "
    "curve rises wherever the target's spectrum is the flatter one, whatever its directions.",
    f"A run collapsed if one of these holds in the last {IN_A_ROW} measured epochs. {_KINDS} The "
    "outputs are the projections around their step's mean; for methods with a softmax the variance "
    "is that of the logits, the rank that of the last layer's input. We do not judge the warm-up, "
    f"nor a value that is recovering (at its current growth it would pass the bound within "
    f"{RECOVERY_EPOCHS} epochs), nor a run whose outputs are mostly their mean; a {DESTROYED} is "
    "judged in the warm-up too. The warnings while training use the same rules with the run's own "
    "bounds.",
    "The best setting has the highest mean over its seeds. Another is within one standard "
    "deviation of it where the two means differ by no more than the larger standard deviation of "
    "the two; the seeds then do not separate them. A setting all of whose runs collapsed or "
    "diverged is not ranked. A high rank or a wide gap does not mean a high accuracy.",
)

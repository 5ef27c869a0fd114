"""How the answers and verdicts are made, in words for the foot of the page."""

from rdm_solo.report.verdicts import BOUNDS, DIRECTIONAL, LAST, SORTED
from rdm_solo.spectra import collapse
from rdm_solo.spectra.collapse import NO_GAP

RULES = (
    "Means, bands and n count the runs with the most epochs in each setting; the answers count "
    "these and the runs that diverged. Every other run is named, drawn as a thin line over its "
    "epochs, and judged alone in the table of every run.",
    "The target leads in an epoch where its effective rank is above the online branch's by more "
    f"than {100 * NO_GAP:g} %. Yes means in at least 95 % of the measured epochs, and that the "
    f"online branch did not lead in all of the last {LAST}. Where a fixed filter makes the lead in "
    "each batch, whatever was learned, the answer says so. Without a filter, with one that may "
    "point either way, or after a collapse, a lead is not scored. Nor are a lead or a low-pass "
    "filter of methods that other means keep from collapsing: contrastive and redundancy-reducing "
    "ones, and ReSSL.",
    f"The filter is low-pass where Spearman's rank correlation of the last epoch's curve with the "
    f"target's eigenvalues is at least {SORTED:g} for sorted eigenvalues and at least "
    f"{DIRECTIONAL:g} along the target's eigenvectors. The sorted curve rises wherever the "
    "target's spectrum is the flatter one, whatever its directions; the test along eigenvectors is "
    "the stricter one.",
    "Complete collapse: in the last two measured epochs, the outputs' variance is below "
    f"{100 * (BOUNDS.variance or 0):g} % of their second moment. Dimensional collapse: in these "
    f"epochs their effective rank is below k^{BOUNDS.erank:g} or {BOUNDS.fewest:g}, whichever is "
    "larger (at most k/2). Equal assignments: in these epochs the softmax has an effective rank "
    f"below {collapse.ONE_ASSIGNMENT:g}. The outputs are the projections around their step's mean; "
    "of methods with a softmax the variance is that of the logits, the rank that of the vectors "
    "that the last layer takes. A value below its bound that rises so fast that it would pass it "
    f"within {collapse.AHEAD} epochs is not scored; nor is a run whose outputs are mostly their "
    "mean. The warnings in training use the same rules with the run's own bounds, after each "
    "epoch past the warm-up.",
    "The best setting has the highest mean over its seeds. Another is within one standard "
    "deviation of it where the two means differ by no more than the larger standard deviation of "
    "the two; nothing then says which of them is better. A setting all of whose runs collapsed or "
    "diverged is not ranked. A high rank or a wide gap does not mean a high accuracy.",
)

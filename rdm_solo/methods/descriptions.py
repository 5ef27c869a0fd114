"""A description of each method; other modules read its fields instead of the method's name.

This module imports neither torch nor solo-learn. ``docs/extend.md`` shows how to add one.
"""

from dataclasses import dataclass
from functools import partial

from rdm_solo.ground.values import check_choice

ASYMMETRIES = ("predictor", "sinkhorn", "centring")
LEGACY, CURRENT = "legacy", "current"  # the two versions of solo-learn
# Families of methods, in the order of our documentation.
FAMILIES = ("distilling", "clustering", "contrastive", "redundancy-reducing", "symmetric")


@dataclass(frozen=True)
class Method:
    """A method: its two branches and their properties.

    Args:
        name: name in ``conf/method`` and on the command line.
        label: name in figures and reports, as in the paper.
        family: one of :data:`FAMILIES`.
        target: what the loss compares the online output with.
        versions: versions of solo-learn that have the method.
        asymmetry: what makes the branches differ: ``"predictor"`` (which a filter can replace),
            ``"sinkhorn"`` or ``"centring"`` of the target's softmax, ``"clusters"`` of k-means, or
            ``""``. The paper's Figure 5 covers the ones in :data:`ASYMMETRIES`.
        momentum: whether the target is a momentum encoder.
        neighbours: whether the target is the nearest earlier output in solo-learn's queue.
        queue: whether batches enter a queue, whose size must be a multiple of the batch size.
        labels: whether the loss needs labels.
        softmax: whether outputs are compared after a softmax, not as unit vectors.
        no_filter: why the method takes no filter; empty if it takes one.
        class_path: ``module:class`` in this package, if the method has a class here.
        loss_minimum: the smallest value of the loss: -1 for minus the cosine, 0 for 2 - 2 cos, None
            if it depends on temperatures. Methods with the same minimum share a panel of the loss
            figure.
        loss: solo-learn's name of the loss, without ``train_``; by default ``NAME_loss``. A loss
            with the name ``neg_cos_sim`` is always recognised.
        multi_crop: the versions of solo-learn in which it accepts small crops.
        paper_m: number of eigenvectors that the paper's code compares in the alignment.
        gap_explanation: causes of a rank gap other than learning, as a sentence.
        collapse_advice: what to change first after a collapse; empty: it depends on the filter.
        should_lead: whether the target should have the higher rank; None: see :attr:`leads`.
    """

    name: str
    label: str
    family: str = ""
    target: str = ""
    versions: tuple[str, ...] = (LEGACY, CURRENT)
    asymmetry: str = ""
    momentum: bool = False
    neighbours: bool = False
    queue: bool = False
    labels: bool = False
    softmax: bool = False
    no_filter: str = ""
    class_path: str = ""
    loss_minimum: float | None = None
    loss: str = ""
    multi_crop: tuple[str, ...] = ()
    paper_m: int = 512
    gap_explanation: str = ""
    collapse_advice: str = ""
    should_lead: bool | None = None

    @property
    def symmetric(self) -> bool:
        """Return whether both branches have the same output."""
        return not self.asymmetry and not self.momentum

    @property
    def leads(self) -> bool:
        """Return whether the paper's mechanism predicts that the target has the higher rank.

        It does for methods with an asymmetry, unless their loss itself prevents collapse.
        """
        if self.should_lead is not None:
            return self.should_lead
        return bool(self.asymmetry) and self.family not in ("contrastive", "redundancy-reducing")


LAG = "The target network's lag can cause part of the gap; the rest was learned."
_LAG_ALONE = "The gap comes only from the target network's lag and from learning."
_QUEUE = "The target is drawn from a queue of earlier outputs, which can cause part of the gap."
_OTHER_VIEW = "the projection of the other view"
_ONE_NETWORK = "both branches are the same network, without a predictor"
_NO_PREDICTOR = "it has no predictor"

_distilling = partial(Method, family="distilling")
_contrastive = partial(
    Method,
    family="contrastive",
    collapse_advice="Lower optimizer.lr first. The negatives keep the outputs apart: a larger "
    "batch_size or queue gives more negatives, and method.kwargs.temperature sets how much the "
    "nearest ones count.",
)
_redundancy_reducing = partial(
    Method,
    family="redundancy-reducing",
    target=_OTHER_VIEW,
    no_filter=_ONE_NETWORK,
    collapse_advice="Lower optimizer.lr first. The loss's redundancy-reduction terms keep the rank "
    "up: raise method.kwargs.lamb (Barlow Twins), or method.kwargs.var_loss_weight and "
    "method.kwargs.cov_loss_weight.",
)
_symmetric = partial(
    Method,
    family="symmetric",
    target=_OTHER_VIEW,
    no_filter="its branches are identical by design",
    class_path="symmetric:SymSimSiam",
    loss_minimum=-1,
)

METHODS = {
    description.name: description
    for description in (
        _distilling(
            "simsiam",
            "SimSiam",
            target="the projection of the other view, after the target filter",
            asymmetry="predictor",
            class_path="models:SimSiam",
            loss_minimum=-1,
        ),
        _distilling(
            "byol",
            "BYOL",
            target="the momentum network's projection of the other view, after the target filter",
            asymmetry="predictor",
            momentum=True,
            class_path="models:BYOL",
            loss_minimum=0,
            multi_crop=(LEGACY, CURRENT),
            paper_m=128,
            gap_explanation=LAG,
        ),
        Method(
            "swav",
            "SwAV",
            family="clustering",
            target="Sinkhorn's assignment of the other view's logits to prototypes",
            asymmetry="sinkhorn",
            softmax=True,
            no_filter="its Sinkhorn assignment is the target's filter",
            class_path="unfiltered:SwAV",
            multi_crop=(CURRENT,),
            gap_explanation="The temperature and Sinkhorn's ε, both fixed, cause part of the "
            "gap; Figure 5 in the report shows how much.",
            collapse_advice="Lower optimizer.lr, or strengthen the assignment: raise "
            "method.kwargs.sk_iters or lower method.kwargs.sk_epsilon.",
        ),
        _distilling(
            "dino",
            "DINO",
            target="the momentum network's softmax of the other view, centred and sharpened",
            asymmetry="centring",
            momentum=True,
            softmax=True,
            no_filter="centring and sharpening are the target's filter",
            class_path="unfiltered:DINO",
            gap_explanation="Fixed temperatures cause part of the gap; Figure 5 in the report "
            "shows how much.",
            collapse_advice="Keep method.centring, method.sharpening and "
            "method.kwargs.norm_last_layer on, and try a lower optimizer.lr or a lower "
            "method.kwargs.teacher_temperature.",
        ),
        _distilling(
            "nnsiam",
            "NNSiam",
            target="the queued row nearest to the other view's projection, after the target filter",
            asymmetry="predictor",
            neighbours=True,
            queue=True,
            class_path="models:NNSiam",
            loss_minimum=-1,
            gap_explanation=_QUEUE,
        ),
        _distilling(
            "nnbyol",
            "NNBYOL",
            target="the momentum network's stored projection nearest to the other view's, after "
            "the target filter",
            asymmetry="predictor",
            momentum=True,
            neighbours=True,
            queue=True,
            class_path="models:NNBYOL",
            loss_minimum=0,
            paper_m=128,
            gap_explanation=_QUEUE,
        ),
        _distilling(
            "ressl",
            "ReSSL",
            target="the momentum network's projection of the other view; the loss compares the two "
            "by their similarities to a queue",
            momentum=True,
            queue=True,
            no_filter=_NO_PREDICTOR,
            gap_explanation=_LAG_ALONE,
            collapse_advice="Lower optimizer.lr or method.kwargs.temperature_k, which must be "
            "below method.kwargs.temperature_q.",
        ),
        Method(
            "deepclusterv2",
            "DeepCluster v2",
            family="clustering",
            target="the image's k-means cluster, one-hot; the first epoch has no target",
            asymmetry="clusters",
            softmax=True,
            no_filter="its target is a k-means cluster",
            class_path="unfiltered:DeepClusterV2",
            loss="deepcluster_loss",
            gap_explanation="A one-hot target beside a soft assignment causes a gap by itself.",
            collapse_advice="Lower optimizer.lr, or set fewer clusters in "
            "method.kwargs.num_prototypes.",
        ),
        _contrastive(
            "simclr",
            "SimCLR",
            target=_OTHER_VIEW,
            no_filter=_ONE_NETWORK,
            loss="nce_loss",
        ),
        _contrastive(
            "supcon",
            "SupCon",
            target="the projection; the loss pulls it to all views of the same class",
            versions=(CURRENT,),
            labels=True,
            no_filter=_ONE_NETWORK,
            loss="nce_loss",
        ),
        _contrastive(
            "mocov2plus",
            "MoCo v2+",
            target="the momentum network's projection of the other view",
            momentum=True,
            queue=True,
            no_filter=_NO_PREDICTOR,
            loss="nce_loss",
            gap_explanation=_LAG_ALONE,
        ),
        _contrastive(
            "mocov3",
            "MoCo v3",
            target="the momentum network's projection of the other view, after the target filter",
            versions=(CURRENT,),
            asymmetry="predictor",
            momentum=True,
            class_path="models:MoCoV3",
            loss="contrastive_loss",
            paper_m=128,
            gap_explanation=LAG,
        ),
        _contrastive(
            "nnclr",
            "NNCLR",
            target="the queued row nearest to the other view's projection, after the target filter",
            asymmetry="predictor",
            neighbours=True,
            queue=True,
            class_path="models:NNCLR",
            gap_explanation=_QUEUE,
        ),
        _contrastive(
            "all4one",
            "All4One",
            target="the momentum network's stored projection nearest to the other view's",
            versions=(CURRENT,),
            asymmetry="predictor",
            momentum=True,
            neighbours=True,
            queue=True,
            no_filter="it has three losses, and a filter would change only one of them",
            loss="comb_loss",
            gap_explanation=_QUEUE,
        ),
        _redundancy_reducing(
            "barlow_twins",
            "Barlow Twins",
            loss="barlow_loss",
        ),
        _redundancy_reducing(
            "vicreg",
            "VICReg",
        ),
        _redundancy_reducing(
            "vibcreg",
            "VIbCReg",
            versions=(CURRENT,),
        ),
        _redundancy_reducing(
            "wmse",
            "W-MSE",
            class_path="unfiltered:WMSE",
            target="the projection of the other view; the loss compares both after whitening",
            loss_minimum=0,
            collapse_advice="Lower optimizer.lr, or whiten larger parts of the batch: set "
            "method.kwargs.whitening_size to several times method.kwargs.proj_output_dim.",
        ),
        _redundancy_reducing(
            "intl",
            "INTL",
            class_path="isotropic:INTL",
            target="the projection of the other view; the loss compares both after whitening",
            collapse_advice="Lower optimizer.lr, or raise method.kwargs.trace_weight.",
        ),
        _redundancy_reducing(
            "lejepa",
            "LeJEPA",
            class_path="isotropic:LeJEPA",
            target="the mean of both views' projections",
            collapse_advice="Lower optimizer.lr, or raise method.kwargs.sigreg_weight.",
        ),
        _symmetric("symsimsiam", "SymSimSiam"),
        _symmetric("vanilla", "Vanilla"),
    )
}


def method(name: str) -> Method:
    """Return a method's description, or raise a :class:`UserError` that suggests the nearest name.

    >>> method("byol").momentum, method("vanilla").symmetric
    (True, True)
    """
    return METHODS[check_choice("method", name, METHODS)]

"""The interventions of the switch trial, as callbacks that act for ten epochs of a run.

An intervention on a module is a forward hook, which replaces the module's output. So the model, its
weights, the optimiser and the checkpoints are those of an ordinary run, and removing the hook ends
the intervention.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import scipy.linalg
import torch
from torch import Tensor, nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.lightning import pl
from studies.mechanism.controls import rank_of

HALVINGS = 11  # bisection steps for the exponent of a matched spectrum
MOMENTUM = 0.9  # of the running mean of a batch's second moment
COVARIANCE_WEIGHT = 0.04  # VICReg weighs the covariance term by 1 and the distance by 25

Output = Callable[[Tensor, Tensor], Tensor]  # of a module's input and output


class Arm(pl.Callback):
    """An intervention in the epochs ``first`` to ``last``, counted from 1."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        if epoch == self.first:
            self.start(pl_module)
        if epoch == self.last + 1:
            self.stop(pl_module)

    def start(self, model: Any) -> None:
        """Begin the intervention."""

    def stop(self, model: Any) -> None:
        """End it."""


class Replaced(Arm):
    """Replace the outputs of modules, given by name, by functions of their input and output."""

    def __init__(self, first: int, last: int, outputs: dict[str, Output]) -> None:
        super().__init__(first, last)
        self.outputs = outputs
        self.handles: list[Any] = []

    def start(self, model: Any) -> None:
        for name, output in self.outputs.items():
            module = model.get_submodule(name)
            hook = partial(replace_output, output)
            # Before the hooks that record the outputs, so that these see the replaced ones.
            handle = module.register_forward_hook(hook, prepend=True)
            self.handles.append(handle)

    def stop(self, model: Any) -> None:
        while self.handles:
            self.handles.pop().remove()


def replace_output(output: Output, module: nn.Module, inputs: Any, result: Tensor) -> Tensor:
    """Return what a forward hook puts in the place of a module's result, in training only."""
    x = inputs[0]
    if not module.training:
        return result
    if x.ndim == 2:
        return output(x, result)
    # A spectral filter is called once with the stack of all views.
    return torch.stack([output(*view) for view in zip(x, result)])


class Regularised(Arm):
    """SimSiam without a filter, and with VICReg's covariance term on the projections.

    VICReg's variance term is zero here: the projector's last batch norm sets all variances to 1.
    """

    def __init__(self, first: int, last: int) -> None:
        super().__init__(first, last)
        self.unfiltered = Replaced(first, last, {"target_head": unchanged})

    def start(self, model: Any) -> None:
        self.unfiltered.start(model)
        self.loss = model.compare

        def compare(z: Tensor, p: Tensor, target: Tensor) -> Tensor:
            return self.loss(z, p, target) + COVARIANCE_WEIGHT * covariance_term(z)

        model.compare = compare

    def stop(self, model: Any) -> None:
        self.unfiltered.stop(model)
        model.compare = self.loss


class OnlineAsTarget(Arm):
    """BYOL whose target has the online network's weights of the same step."""

    def start(self, model: Any) -> None:
        updater = model.momentum_updater
        self.taus = updater.base_tau, updater.final_tau
        updater.base_tau = updater.final_tau = updater.cur_tau = 0.0
        for online, target in model.momentum_pairs:
            updater.update(online, target)

    def stop(self, model: Any) -> None:
        updater = model.momentum_updater
        updater.base_tau, updater.final_tau = self.taus
        trainer = model.trainer
        updater.update_tau(trainer.global_step, trainer.estimated_stepping_batches)


class DinoTarget(Arm):
    """DINO without centring, without sharpening, or without both."""

    def __init__(self, first: int, last: int, centring: bool, sharpening: bool) -> None:
        super().__init__(first, last)
        self.centring = centring
        self.sharpening = sharpening

    def start(self, model: Any) -> None:
        loss = model.dino_loss_func
        self.momentum = loss.center_momentum
        self.temperatures = loss.teacher_temp_schedule.copy()
        if not self.centring:
            loss.center_momentum = 1.0  # the centre stays at zero
            loss.center.zero_()
        if not self.sharpening:
            loss.teacher_temp_schedule[:] = loss.student_temp

    def stop(self, model: Any) -> None:
        loss = model.dino_loss_func
        loss.center_momentum = self.momentum
        loss.teacher_temp_schedule = self.temperatures


def unchanged(x: Tensor, output: Tensor) -> Tensor:
    """Remove a module."""
    return x


def power(p: float, branch: str = "target") -> Output:
    """Return the filter σ^p of this branch in place of the module."""
    spectral = SpectralFilter(branch, "pow", p=p)
    return lambda x, output: spectral(x)


def lifted_tail(x: Tensor, output: Tensor) -> Tensor:
    """Filter by σ^-0.5 only the singular values below the median, relative to the median."""
    U, S, Vh = decomposed(x)
    weaker = (S / S.median()).clamp(max=1)
    return ((U * S * weaker.pow(-0.5)) @ Vh).to(x)


class Rotated:
    """The filter's output, rotated by a share of the way to a random rotation.

    A rotation changes neither the lengths of the rows nor any spectrum, so the gap is that of the
    filter. The eigenvectors of the target move along a geodesic of the rotations.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share = share
        self.draw = torch.Generator().manual_seed(seed)
        self.rotation: Tensor | None = None

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        if self.rotation is None:
            self.rotation = rotation(output.shape[1], self.share, self.draw)
        return output @ self.rotation.to(output)


class Scrambled:
    """The same eigenvectors with the singular values of a power filter in a random order.

    The order is drawn once. The power is chosen for each batch so that the rows, scaled to unit
    length, have the rank of the filter's output. The eigenvectors are those of a running mean:
    those of single batches differ so much in the weak directions that strong values there would
    give all batches together a far higher rank.
    """

    def __init__(self, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.order: Tensor | None = None

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        rows = x.detach().double()
        moment = rows.mT @ rows / len(rows)
        if self.order is None:
            self.order = torch.randperm(len(moment), generator=self.draw)
            self.running = moment
        self.running = torch.lerp(moment, self.running, MOMENTUM)
        eigenvalues, vectors = torch.linalg.eigh(self.running)
        sigma = eigenvalues.clamp(min=1e-8 * eigenvalues[-1]).sqrt()
        unit = rows @ vectors / sigma
        target_rank = rank_of(output.double())
        low, high = 0.0, 8.0  # the rank falls with the power
        for _ in range(HALVINGS):
            power = (low + high) / 2
            scrambled = unit * sigma[self.order].pow(power)
            if rank_of(scrambled) > target_rank:
                low = power
            else:
                high = power
        return (scrambled @ vectors.mT).to(x)


def decomposed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, the singular values of at least 1e-6 of the largest, and V^T, in float64."""
    U, S, Vh = torch.linalg.svd(x.detach().double(), full_matrices=False)
    cut = 1e-6 * S[0]
    return U, S.clamp(min=cut), Vh


def rotation(k: int, share: float, draw: torch.Generator) -> Tensor:
    """Return a share of a rotation that is drawn uniformly from all rotations of k dimensions.

    >>> draw = torch.Generator().manual_seed(0)
    >>> half = rotation(5, 0.5, draw)
    >>> whole = rotation(5, 1.0, draw.manual_seed(0))
    >>> bool(torch.allclose(half @ half, whole))
    True
    """
    normal = torch.randn(k, k, generator=draw, dtype=torch.float64)
    Q, R = torch.linalg.qr(normal)
    Q = Q * R.diagonal().sign()
    if torch.linalg.det(Q) < 0:
        Q[:, 0] *= -1
    generator = scipy.linalg.logm(Q.numpy()).real
    return torch.linalg.matrix_exp(share * torch.from_numpy(generator))


def covariance_term(z: Tensor) -> Tensor:
    """Return the sum of the squared covariances of different dimensions, divided by k (VICReg)."""
    centred = z - z.mean(0)
    covariance = centred.mT @ centred / (len(z) - 1)
    off_diagonal = covariance - covariance.diagonal().diag()
    return off_diagonal.square().sum() / z.shape[1]


def softmax_instead_of(epsilon: float) -> Output:
    """Return the plain softmax of the logits at the assignment's temperature."""
    return lambda logits, assignment: (logits.float() / epsilon).softmax(1)

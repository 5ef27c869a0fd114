"""The branches of solo-learn's methods with a softmax: SwAV, DeepCluster v2 and DINO."""

from typing import Any

from torch import Tensor, nn

from rdm_solo.observe.branches import Observer


class _SoftmaxObserver(Observer):
    """Record the input of the last layer before the softmax as ``hidden``."""

    normalize = False
    aliases = {"projection": "online"}

    def description(self) -> str:
        return "the softmax of the last layer's outputs and its targets"

    def _register(self) -> None:
        self._hook_inputs(self.last_layer, "hidden")


class _Swav(_SoftmaxObserver):
    """Record the softmax of the logits, and Sinkhorn's assignment."""

    def _register(self) -> None:
        super()._register()
        sinkhorn = self.module.sk
        self._hook(sinkhorn.register_forward_hook, sinkhorn, self._record_step)

    def _record_step(self, args: tuple[Tensor], kwargs: Any, assignment: Tensor) -> None:
        # The batch's rows precede the queue's, and large crops precede small ones.
        n = len(self._recorded["hidden"][0])
        logits = args[0][:n].float() / self.module.temperature
        self._record("online", logits.softmax(1))
        self._record("target", assignment[:n])


class _DeepCluster(_SoftmaxObserver):
    """Record the first set of prototypes and the clusters that k-means assigned to the images.

    k-means runs at the start of each epoch except the first.
    """

    def _register(self) -> None:
        super()._register()
        self._hook(self.last_layer.register_forward_hook, self.last_layer, self._record_logits)
        self._wrap_method("update_memory_banks", self._record_clusters)

    def _record_logits(self, args: tuple[Tensor], kwargs: Any, logits: Tensor) -> None:
        logits = logits.float() / self.module.temperature
        self._record("online", logits.softmax(1))

    def _record_clusters(self, result: None, idxs: Tensor, *args: Any, **kwargs: Any) -> None:
        clusters = self.module.assignments[0].to(idxs.device)[idxs]
        # Images without a cluster are dropped. Computing indices synchronises once per recorded
        # step; a mask would synchronise at each use.
        indices = (clusters >= 0).nonzero()[:, 0]
        for name in ("online", "hidden"):
            self._recorded[name] = [outputs[indices] for outputs in self._recorded[name]]
        target = nn.functional.one_hot(clusters[indices], self.last_layer.out_features)
        views = len(self._recorded["online"])
        self._recorded["target"] = [target.float()] * views


class _Dino(_SoftmaxObserver):
    """Record the student's softmax, and the teacher's after centring and sharpening."""

    def _register(self) -> None:
        super()._register()
        # A pre-hook, because the loss's forward updates the centre.
        loss = self.module.dino_loss_func
        self._hook(loss.register_forward_pre_hook, loss, self._record_step)

    def _record_step(self, args: tuple[Tensor, Tensor], kwargs: Any) -> None:
        loss = self.module.dino_loss_func
        student, teacher = args
        temperature = float(loss.teacher_temp_schedule[loss.epoch])
        online = student.float() / loss.student_temp
        target = (teacher.float() - loss.center) / temperature
        for name, logits in (("online", online), ("target", target)):
            for view in logits.softmax(1).chunk(self.module.num_large_crops):
                self._record(name, view)


def observer(module: Any) -> Observer | None:
    """Return the observer of a method with a softmax; None for other modules."""
    if hasattr(module, "dino_loss_func"):
        return _Dino(module, module.head.last_layer)
    if hasattr(module, "sk_iters"):
        return _Swav(module, module.prototypes)
    if hasattr(module, "kmeans_iters"):
        return _DeepCluster(module, module.prototypes[0])
    return None

"""Two processes whose steps have unequal rows: the same steps are recorded as by one process."""

import pytest
import torch
from conftest import features
from support.second_device import DEVICE
from support.waits import Waits
from torch import nn

from rdm_solo.observe.branches import MissingBranch, Observer
from rdm_solo.observe.outputs import Outputs
from rdm_solo.observe.parts import observer
from rdm_solo.observe.recorder import Limits, Recorder

STEPS, ROWS, K = 8, 24, 10


class GivenOutputs(Observer):
    """An observer whose outputs are set by the test; None stands for a step without a target."""

    given = None

    def pop_outputs(self, views=None, step_output=None):
        self.recording = False
        if self.given is None:
            raise MissingBranch("no target")
        return self.given


def record_epoch(rank, size, softmax, missing, one_view, steps):
    """Return the scalars of an epoch and its recorded steps.

    Of two processes, the first has 20 rows of each batch and the second 4. With a softmax, logits
    come from the hidden rows. The last process has no outputs in ``missing`` steps, and no
    positives in step ``one_view``.
    """
    torch.manual_seed(0)
    module = nn.Linear(6, K, bias=False)
    observer = GivenOutputs(module)
    observer.normalize = not softmax
    observer.last_layer = module if softmax else None
    recorder = Recorder(observer, Limits(max_rows=100, max_dim=64, sample=16))
    recorder.was_measured = True  # a step without a target is left out from the first one on
    first, end = 0, ROWS
    if size == 2:
        first, end = [(0, 20), (20, ROWS)][rank]
    recorded = []
    for step in range(STEPS):
        if not recorder.before_step(step, steps):
            continue
        batch = features("1/i", ROWS, 6, seed=step)
        hidden = batch[first:end]
        z = module(hidden).detach()
        if softmax:
            z = z.softmax(1)
        else:
            hidden = None
        positive = z.flip(1)
        if end == ROWS and step == one_view:
            positive = None
        observer.given = Outputs(z, z.roll(1, 1), positive, z, hidden)
        if end == ROWS and step in missing:
            observer.given = None
        recorded_before = recorder.recorded_steps
        recorder.after_step()
        if recorder.recorded_steps > recorded_before:
            recorded.append(step)
    return recorder.end_epoch(1).scalars, recorded


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("steps", [STEPS, float("inf")])
@pytest.mark.parametrize(
    ("missing", "one_view"),
    [([], -1), ([], 0), ([], 2), ([0, 1, 4], -1), (range(STEPS), -1)],
)
def test_unequal_processes_record_what_one_does(worlds, softmax, steps, missing, one_view):
    options = (softmax, missing, one_view, steps)
    expected, expected_steps = record_epoch(0, 1, *options)
    assert bool(expected) is (len(missing) < STEPS)
    assert ("erank/positive" in expected) is (bool(expected) and one_view != 0)
    if not missing:
        planned = [0, 2, 4, 6] if steps == STEPS else [0, 1, 2, 3, 4]
        if one_view == 2:  # the steps before it have positives
            planned.remove(2)
        assert expected_steps[: len(planned)] == planned
    for scalars, recorded in worlds(2).run(record_epoch, *options):
        assert recorded == expected_steps
        assert scalars.keys() == expected.keys()
        for name, value in expected.items():
            # Measured on four instruction sets: at most 3.3e-8 of a value. Uniformity is computed
            # from float32 rows: at most 4.8e-7, one rounding of a value between 4 and 8.
            atol = 1.5e-6 if name == "uniformity/target" else 1e-9
            assert scalars[name] == pytest.approx(value, rel=1e-6, abs=atol), name


def record_rows(limits, rows, k):
    """Record an epoch of steps with this many rows, and return its row."""
    observer = GivenOutputs(nn.Identity())
    recorder = Recorder(observer, limits)
    for step in range(STEPS):
        z = features("1/i", rows, k, seed=step)
        observer.given = Outputs(z, z, None, z)
        recorder.before_step(step, STEPS)
        recorder.after_step()
    return recorder.end_epoch(1)


@pytest.mark.parametrize(
    ("limits", "option"),
    [
        (Limits(), None),  # 8 steps of 8 rows are all rows of the epoch
        (Limits(max_rows=32), "max_rows"),
        (Limits(max_dim=8, sample=32), "sample"),
        (Limits(max_dim=8, sample=128), None),
        (Limits(max_dim=8, sample=128, max_rows=32), "max_rows"),
    ],
)
def test_a_warning_about_few_rows_names_the_option_that_limits_them(limits, option, caplog):
    record_rows(limits, rows=8, k=80)
    (record,) = caplog.records
    for name in ("max_rows", "sample"):
        assert (f"diagnostics.{name} " in record.message) is (name == option)


@pytest.mark.parametrize("rows", [4, 8])
def test_steps_of_few_rows_do_not_judge_a_collapse(rows, caplog):
    """Few rows vary little around their own mean: two rows have half of the true variance."""
    scalars = record_rows(Limits(), rows, k=4).scalars
    is_judged = rows == 8
    assert ("feature/spread" in scalars) is is_judged
    assert ("erank/centred" in scalars) is is_judged
    assert len(caplog.records) == int(not is_judged)


def operators_of_a_step(n: int, k: int) -> int:
    """Return the number of operators that recording adds to the second of two steps."""
    parts = {
        "backbone": nn.Linear(4, 8),
        "projector": nn.Linear(8, k),
        "predictor": nn.Linear(k, k),
    }
    model = nn.ModuleDict(parts).to(DEVICE)
    recorder = Recorder(observer(model), Limits(max_dim=1024, sample=16), views=2)

    def train() -> None:
        for view in torch.randn(2, n, 4).to(DEVICE):
            features = model["backbone"](view)
            model["predictor"](model["projector"](features))

    with Waits() as plain:
        train()
    counts = []
    for step in range(2):
        assert recorder.before_step(step, 2)
        with Waits() as recorded:
            train()
            recorder.after_step()
        counts.append(recorded.operators - plain.operators)
    assert recorder.recorded_steps == 2
    return counts[-1]


@pytest.mark.parametrize(("k", "most"), [(600, 240), (2000, 200)])
def test_a_recorded_step_launches_few_operators(on_second_device, k, most):
    """Launching them takes most of the time on a GPU. Large batches launch no more."""
    counts = {on_second_device(operators_of_a_step, n, k) for n in (8, 400)}
    assert len(counts) == 1
    assert counts.pop() <= most

"""The switch trial: interventions that end, matched gaps, a shared start, the analysis."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import features
from scipy import stats
from support.small_runs import SMALL, configure, small
from torch import nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.methods import building
from rdm_solo.spectra import correlation, effective_rank
from rdm_solo.train.training_data import derive, make_data
from studies.intervals import equivalence
from studies.switch import arms, effects, runs
from studies.switch.runs import ARMS, PLAN, UNSWITCHED, Unit


@pytest.fixture
def x():
    """Return a batch whose singular values fall as 1/i, in random directions."""
    sigma = torch.arange(1, 17).float().reciprocal()
    directions = torch.linalg.qr(features("gaussian", 16, 16)).Q
    return features("gaussian", 128, 16) * sigma @ directions


@pytest.fixture
def reference(x):
    """Return the batch, filtered by target σ^-0.5."""
    return SpectralFilter("target", "pow", p=-0.5)(x)


def rank(rows):
    """Return the effective rank of rows of unit length, from the covariance's definition."""
    unit = (rows / rows.norm(dim=1, keepdim=True)).double()
    return float(effective_rank(correlation(unit)))


def model(*options):
    """Return a small model as a run builds it."""
    cfg = configure(*options)
    dataset, views = make_data(cfg)
    model_cfg, _ = derive(cfg, dataset, views)
    return building.build(model_cfg, dataset.labelled)


# Interventions.


def test_an_output_is_replaced_in_training_and_before_it_is_recorded():
    module = nn.Sequential(nn.Linear(3, 3))
    recorded = []
    module[0].register_forward_hook(lambda module, inputs, output: recorded.append(output))
    x = torch.randn(4, 3)
    original = module(x)
    arm = arms.Replaced(11, 20, {"0": arms.unchanged})
    arm.start(module)
    assert torch.equal(module(x), x)
    assert torch.equal(recorded[-1], x)
    assert torch.equal(module.eval()(x), original)
    arm.stop(module)
    assert torch.equal(module.train()(x), original)


def test_a_stack_of_views_is_replaced_view_by_view(x):
    views = torch.stack([x, 2 * x.flip(0)])
    network = nn.ModuleDict({"target_head": SpectralFilter("target", "pow", p=-0.5)})
    outputs = [network["target_head"](view) for view in views]
    arms.Replaced(11, 20, {"target_head": arms.Scrambled(seed=0)}).start(network)
    out = network["target_head"](views)
    by_view = arms.Scrambled(seed=0)
    for view, result, replaced in zip(views, outputs, out):
        torch.testing.assert_close(replaced, by_view(view, result))


def test_a_removed_predictor_keeps_its_weights():
    predictor = nn.Linear(3, 3)
    network = nn.ModuleDict({"predictor": predictor})
    optimizer = torch.optim.SGD(predictor.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
    predictor(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = predictor.weight.clone()
    arms.Replaced(11, 20, {"predictor": arms.unchanged}).start(network)
    z = torch.randn(4, 3, requires_grad=True)
    predictor(z).square().sum().backward()
    optimizer.step()
    assert torch.equal(predictor.weight, before)


def test_byols_target_has_the_online_weights_until_it_is_put_back():
    byol = model(*SMALL, "method=byol")
    with torch.no_grad():
        for online, _ in byol.momentum_pairs:
            for weights in online.parameters():
                weights.add_(1.0)
    byol.trainer = type("Trainer", (), {"global_step": 5, "estimated_stepping_batches": 10})
    updater = byol.momentum_updater
    before = updater.base_tau, updater.final_tau
    arm = arms.OnlineAsTarget(11, 20)
    arm.start(byol)
    for online, target in byol.momentum_pairs:
        for first, other in zip(online.parameters(), target.parameters()):
            assert torch.equal(first, other)
    updater.update_tau(cur_step=5, max_steps=10)  # after a step
    assert updater.cur_tau == 0
    arm.stop(byol)
    assert (updater.base_tau, updater.final_tau) == before
    assert before[0] < updater.cur_tau < before[1]


def test_dinos_target_loses_centre_and_temperature_and_gets_them_back():
    loss = model(*small("dino")).dino_loss_func
    loss.epoch = 1
    student = torch.randn(8, loss.center.shape[1])
    teacher = student + 5 * torch.arange(loss.center.shape[1])
    for _ in range(200):  # until the centre has converged
        loss(student, teacher)
    centred = loss(student, teacher)
    temperatures = loss.teacher_temp_schedule.copy()
    holder = type("Model", (), {"dino_loss_func": loss})
    arm = arms.DinoTarget(11, 20, centring=False, sharpening=False)
    arm.start(holder)
    changed = loss(student, teacher)
    logits = student / loss.student_temp
    target = (teacher / loss.student_temp).softmax(1)
    a, b = target.chunk(2)
    c, d = logits.log_softmax(1).chunk(2)
    expected = -((a * d).sum(1).mean() + (b * c).sum(1).mean()) / 2
    torch.testing.assert_close(changed, expected)
    assert loss.center.abs().max() == 0
    arm.stop(holder)
    assert np.array_equal(loss.teacher_temp_schedule, temperatures)
    for _ in range(200):
        loss(student, teacher)
    torch.testing.assert_close(loss(student, teacher), centred, rtol=1e-4, atol=1e-4)


def test_a_softmax_replaces_sinkhorns_assignment():
    logits = torch.randn(6, 4)
    out = arms.softmax_instead_of(0.05)(logits, torch.zeros(6, 4))
    expected = (logits / 0.05).exp()
    torch.testing.assert_close(out, expected / expected.sum(1, keepdim=True))


def test_the_covariance_term_is_vicregs():
    z = features("gaussian", 64, 5)
    covariance = np.cov(z.numpy(), rowvar=False)
    squares = covariance**2
    expected = (squares.sum() - squares.trace()) / 5
    assert float(arms.covariance_term(z)) == pytest.approx(expected, rel=1e-5)


# Matched gaps.


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_rotated_target_has_the_filters_gap_and_other_eigenvectors(share, x, reference):
    rotated = arms.Rotated(share, seed=0)
    out = rotated(x, reference)
    assert torch.equal(rotated(x, reference), out)  # drawn once
    assert rank(out) == pytest.approx(rank(reference), rel=1e-4)
    expected = torch.linalg.svdvals(reference)
    torch.testing.assert_close(torch.linalg.svdvals(out), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(arms.Rotated(share, seed=1)(x, reference), out)


def test_scrambled_values_have_the_filters_gap_on_the_same_eigenvectors(x, reference):
    out = arms.Scrambled(seed=0)(x, reference)
    assert rank(out) == pytest.approx(rank(reference), rel=0.01)
    assert rank(reference) > 1.3 * rank(x)
    directions = torch.linalg.svd(x, full_matrices=False).Vh
    moment = directions @ out.mT @ out @ directions.mT
    off_diagonal = moment - moment.diagonal().diag()
    assert off_diagonal.abs().max() < 1e-3 * moment.max()
    strengths = moment.diagonal()
    assert not torch.equal(strengths.argsort(descending=True), torch.arange(16))


def test_only_the_tail_is_lifted(x, reference):
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    lifted = arms.lifted_tail(x, reference).double()
    out = (u.mT @ lifted @ vh.mT).diagonal()
    median = sigma[8]  # torch's median of an even number is the lower one
    expected = torch.where(sigma >= median, sigma, (sigma * median).sqrt())
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


# Runs.


def test_an_arm_that_changes_nothing_repeats_the_unswitched_run(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "FIRST", 3)
    plan = {
        "shared": [
            *SMALL,
            "max_epochs=4",
            "checkpoint.every_n_epochs=2",
            "scheduler.warmup_epochs=1",
        ],
        "data": {"tiny": []},
        "settings": {"power": ["filter=target_pow", "p=-0.5"]},
        "probes": [2, 4],
    }
    monkeypatch.setattr(runs, "PLAN", {**PLAN, **plan})
    nothing = {"nothing": lambda seed: arms.Arm(3, 3)}
    off = {"off": lambda seed: arms.Replaced(3, 3, {"target_head": arms.unchanged})}
    monkeypatch.setattr(runs, "ARMS", {"power": nothing | off})
    unswitched, repeated, changed = runs.train_unit(Unit("tiny", 1, "power"))
    assert [row["arm"] for row in (unswitched, repeated, changed)] == [UNSWITCHED, "nothing", "off"]
    for name in (*PLAN["columns"], "knn 4", "linear 4"):
        assert repeated[name] == unswitched[name]
    assert len(changed["online"].split()) == 3  # epochs 2 to 4
    gaps = []
    for online, target in zip(changed["online"].split(), changed["target"].split()):
        gaps.append(float(target) - float(online))
    assert gaps[0] > 0.1
    assert gaps[1] == 0
    assert gaps[2] > 0.1


# Analysis.


def table_of(effect, seeds=6, noise=0.02):
    """Return a table in which ``effect(setting, arm, epoch)`` is added to ln of all ranks."""
    random = np.random.default_rng(0)
    rows = []
    for data, seed in itertools.product(("textures", "icons"), PLAN["seeds"][:seeds]):
        for setting, of_setting in ARMS.items():
            for arm in (UNSWITCHED, *of_setting):
                row = {"data": data, "seed": str(seed), "setting": setting, "arm": arm}
                row["status"] = "ok"
                shift = np.array([effect(setting, arm, epoch) for epoch in effects.EPOCHS])
                for name in PLAN["columns"]:
                    ranks = np.exp(1.5 + shift + noise * random.normal(size=len(shift)))
                    row[name] = " ".join(map(str, ranks))
                for name, epoch in itertools.product(effects.ACCURACIES, PLAN["probes"]):
                    row[f"{name} {epoch}"] = str(50 + random.normal())
                rows.append(row)
    return pd.DataFrame(rows)


def halved(setting, arm, epoch):
    """Return an effect of "off": the rank falls by half in 5 epochs, and comes back."""
    return np.interp(epoch, [10, 15, 20, 25], [0, np.log(0.5), np.log(0.5), 0]) * (arm == "off")


def test_tests_compare_an_arm_with_the_same_seed():
    values = effects.values_of(table_of(halved))
    tests = effects.judged(values, PLAN["questions"]["removed"]).set_index(["arm", "data"])
    off = tests.loc["off", "icons"]
    assert off["says"] == "down"
    assert off["as expected"] == off["n"] == 6
    ranks = np.log(values.loc["icons", "power"]["projection", 15])
    independent = stats.ttest_rel(ranks["off"], ranks[UNSWITCHED])
    interval = independent.confidence_interval(0.95)
    assert off["low"] == pytest.approx(interval.low)
    assert off["high"] == pytest.approx(interval.high)
    assert off["p"] == pytest.approx(min(1, 6 * independent.pvalue))  # the smallest of six
    assert tests.loc["p 0.5", "textures"]["says"] == "no difference"
    restored = effects.judged(values, PLAN["questions"]["restored"]).set_index(["arm", "data"])
    assert restored.loc["off", "textures"]["mean"] == pytest.approx(np.log(2), abs=0.1)
    assert restored.loc["off", "textures"]["says"] == "up"


def test_equivalence_is_a_90_percent_interval_within_the_margin():
    random = np.random.default_rng(1)
    for _ in range(50):
        sample = random.normal(0.03, 0.1, size=8)
        low, high = stats.ttest_1samp(sample, 0).confidence_interval(0.9)
        is_within = low > -0.1 and high < 0.1
        assert (equivalence(sample, 0.1) < 0.05) == is_within

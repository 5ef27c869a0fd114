"""Mistyped command lines and impossible values: one sentence each, never a traceback."""

from __future__ import annotations

import random

import pytest
from conftest import command
from support.small_runs import SMALL

from rdm_solo import cli, train

PLAIN = {
    "config": ["method=byol", "filter=target_pow", "p=-0.5", "seed=1", "optimizer.lr=0.1"],
    "linear": ["run=a", "dataset=digits", "lr=3", "features=cached", "augmentation.flip=null"],
    "export": ["run=a", "checkpoint=b", "out=c"],
    "preview": ["filter=online_pow", "p=1", "spectrum=1/i^2", "k=8", "omega=0.5"],
}
SIGNS = "=.,:[]{}()'\"\\/+~@#$%*?! -_0aZ\u00e9"


def mutated(argument: str, rng: random.Random) -> str:
    """A letter dropped, doubled, replaced, inserted or swapped; sometimes two of these."""
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(argument))
        before, here, after = argument[:at], argument[at], argument[at + 1 :]
        argument = rng.choice(
            (
                before + after,
                before + here + here + after,
                before + rng.choice(SIGNS) + after,
                before + rng.choice(SIGNS) + here + after,
                before + after[:1] + here + after[1:],
            )
        )
        if not argument:
            return "="
    return argument


@pytest.mark.parametrize("config", PLAIN)
def test_a_mutated_command_line_gives_a_config_or_a_sentence(config):
    rng = random.Random(config)
    sentences = []
    for _ in range(30):
        argv = list(PLAIN[config])
        at = rng.randrange(len(argv))
        argv[at] = mutated(argv[at], rng)
        if argv[at].startswith("-"):
            continue  # a flag, which argparse reads
        try:
            assert cli.compose(config, argv) is not None
        except ValueError as error:
            sentences.append(str(error))
    assert len(sentences) > 3
    assert all(sentence.strip() and "\n" not in sentence for sentence in sentences)


@pytest.mark.parametrize(
    "overrides",
    [
        ["++trainer.accumulate_grad_batches=0"],
        ["filter=target_pow", "p=1e30"],
        ["filter=target_pow", "p=-50"],
        ["++backbone.kwargs.width=0"],
        ["++backbone.kwargs.width=100000"],
        ["method.kwargs.proj_output_dim=0"],
        ["method.kwargs.proj_hidden_dim=x"],
        ["filter=online_log1p", "filter.function=os.system"],
        ["filter=online_log1p", "filter.function=torch.sum"],
        ["seed=99999999999999"],
        ["dataset.image_size=1"],
        ["dataset.num_train=x"],
        ["dataset.views=3"],
        ["knn.k=100000"],
        ["backbone=resnet18"],
        ["backbone.name=3"],
        ["backbone.kwargs=null"],
        ["optimizer=sgd"],
        ["scheduler=null"],
        ["scheduler.min_lr=x"],
        ["watch=false"],
        ["knn=5"],
        ["method.kwargs=3"],
        ["optimizer.lr=.nan"],
        ["batch_size=null"],
        ["trainer.precision=null"],
        ["++trainer.limit_train_batches=x"],
    ],
    ids=" ".join,
)
def test_a_value_that_no_run_can_use_is_refused_before_training(overrides, tmp_path):
    with pytest.raises(ValueError, match=r"\S") as refused:
        train.build(
            cli.compose("config", [*SMALL, "scheduler.warmup_epochs=0", *overrides]), tmp_path
        )
    assert len(str(refused.value)) > 20


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ["rdm_solo.train", "backbone.name=small_resnet", "++backbone.kwargs.width=0"],
        ["rdm_solo.train", "hydra.run.dir=/proc/foo"],
        ["rdm_solo.linear", "run=nowhere", "lr=1e30"],
        ["rdm_solo.export", "run=it's,a=b"],
        ["rdm_solo.report", "nowhere"],
        ["rdm_solo.preview", "filter=target_pow", "p=1e30"],
    ],
    ids=" ".join,
)
def test_a_command_ends_with_one_sentence(arguments, tmp_path):
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr.strip().splitlines()[-1]


@pytest.mark.process
def test_the_console_scripts_way_trains_on_two_processes(tmp_path):
    """Lightning starts the second process by the name of the module that runs."""
    two = ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "batch_size=8"]
    small = [option for option in SMALL if not option.startswith("batch_size")]
    done = command("rdm_solo", "train", *small, *two, "max_epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    (summary,) = tmp_path.rglob("summary.json")
    assert '"processes": 2' in summary.read_text()

"""Training passes that are replayed as CUDA graphs compute what the layers compute one by one."""

import pytest
import torch
from support.image_files import write_tree
from support.replayed import captured, images, outputs_of_three_steps, with_replayed_copy
from support.small_runs import SMALL, rows, run
from torch import nn

from benchmarks.cost import Step
from rdm_solo.ground.lightning import pl
from rdm_solo.methods.backbones import SmallResNet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda"
IMAGES = {"n": 16, "size": 16, "device": DEVICE}


@pytest.fixture(autouse=True)
def _reproducible(_restored_settings):
    """Let cuDNN compute the same sums in the same order each time, without TF32."""
    backend = torch.backends.cudnn
    backend.benchmark, backend.deterministic, backend.allow_tf32 = False, True, False


def pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the module on the device, and a copy that replays graphs."""
    return with_replayed_copy(module.to(DEVICE).train())


class Counted(pl.Callback):
    """Count a run's captured views."""

    def on_train_end(self, trainer, module):
        self.captured = captured(module.backbone)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("simsiam", "resnet18"),
        ("byol", "resnet18"),
        ("dino", "vit_tiny"),
        ("simsiam", "swin_tiny"),  # drops random blocks
        ("simsiam", "timm/convnext_atto"),
    ],
)
def test_steps_are_the_same(method, name):
    options = [
        f"method={method}",
        f"backbone.name={name}",
        "backbone.kwargs.zero_init_residual=null",
    ]
    options += ["dataset.image_size=32", "batch_size=16"]
    options += ["optimizer.lr=0.005", "scheduler.warmup_epochs=0"]
    results = []
    for cuda_graph in ("false", "true"):
        step = Step(DEVICE, *options, f"backbone.cuda_graph={cuda_graph}")
        before = {key: value.clone() for key, value in step.model.state_dict().items()}
        torch.cuda.manual_seed(1)
        losses = torch.stack([step() for _ in range(3)])
        after = step.model.state_dict()
        moves = {key: (value - before[key]).double().cpu() for key, value in after.items()}
        results.append((losses.cpu(), moves))
    assert captured(step.model.backbone) == 2, "one for each view"
    (losses, expected), (replayed_losses, actual) = results
    torch.testing.assert_close(replayed_losses, losses, rtol=1e-4, atol=1e-5)
    assert any(
        expected[f"backbone.{name}"].any() for name, _ in step.model.backbone.named_parameters()
    )
    assert actual.keys() == expected.keys()
    for key, move in expected.items():
        # On a CPU, noise of 3e-7 in the images changes these moves by up to 4 % (BYOL's ResNet).
        assert (actual[key] - move).norm() <= 0.1 * move.norm() + 1e-6, key


def test_gradients_accumulate_and_results_are_kept():
    modules = pair(SmallResNet(width=8))
    outputs = [outputs_of_three_steps(module, **IMAGES) for module in modules]
    assert captured(modules[1]) == 2
    gradients = [[weight.grad for weight in module.parameters()] for module in modules]
    buffers = [list(module.buffers()) for module in modules]
    for expected, actual in (outputs, gradients, buffers):
        assert all(map(torch.equal, actual, expected))


def test_weights_are_cast_in_each_step():
    """Autocast's own cache would keep the cast of the first step."""
    plain, graphed = pair(SmallResNet(width=8))
    for _ in range(2):
        results = []
        for module in (plain, graphed):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                results.append(module(images(**IMAGES)))
            results[-1].float().sum().backward()
            with torch.no_grad():
                for weight in module.parameters():
                    weight.mul_(1.5)
        assert torch.equal(*results)
    assert captured(graphed) == 1


def test_random_numbers_are_drawn_in_each_step():
    layers = nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    plain, graphed = pair(nn.Sequential(*layers))
    results = []
    for module in (plain, graphed):
        torch.cuda.manual_seed(0)
        outputs = []
        for _ in range(3):
            output = module(images(**IMAGES))
            output.sum().backward()
            outputs.append(output.detach())
        results.append(torch.stack(outputs))
    assert captured(graphed) == 1
    assert torch.equal(*results)
    first, second, _ = results[1]
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "options",
    [
        ["trainer.precision=32-true"],
        ["trainer.precision=16-mixed"],
        ["trainer.accumulate_grad_batches=2"],  # bf16-mixed where the card has it
    ],
)
def test_a_run_is_the_same(options, tmp_path):
    options = [*SMALL, "trainer.accelerator=gpu", "++trainer.deterministic=true", *options]
    plain, replayed = tmp_path / "plain", tmp_path / "replayed"
    run(plain, *options)
    counted = Counted()
    run(replayed, *options, "backbone.cuda_graph=true", callbacks=[counted])
    assert counted.captured == 2
    assert rows(replayed) == rows(plain)


def test_a_run_on_image_files_trains(tmp_path):
    """A thread pins the loader's batches, and may use the device during the capture."""
    tree = write_tree(tmp_path / "images", train=40)
    options = [option for option in SMALL if not option.startswith("dataset")]
    options += ["dataset=folder", f"dataset.root={tree}", "dataset.image_size=16"]
    options += ["dataset.workers=1", "batch_size=8", "trainer.accelerator=gpu"]
    options += ["knn.every_n_epochs=0", "max_epochs=1"]
    counted = Counted()
    run(tmp_path / "run", *options, "backbone.cuda_graph=true", callbacks=[counted])
    assert counted.captured == 2
    assert len(rows(tmp_path / "run")) == 1

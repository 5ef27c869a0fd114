"""Training passes that are replayed as CUDA graphs compute what the layers compute one by one."""

import copy

import pytest
import torch
from support.image_files import write_tree
from support.small_runs import SMALL, rows, run
from torch import Tensor, nn

from benchmarks.cost import Step
from rdm_solo.ground.errors import UserError
from rdm_solo.methods.backbones import SmallResNet
from rdm_solo.methods.cuda_graphs import ReplayedForward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.usefixtures("_reproducible"),
]

DEVICE = "cuda"


@pytest.fixture
def _reproducible():
    """Let cuDNN compute the same sums in the same order each time, without TF32."""
    backend = torch.backends.cudnn
    before = backend.benchmark, backend.deterministic, backend.allow_tf32
    backend.benchmark, backend.deterministic, backend.allow_tf32 = False, True, False
    yield
    backend.benchmark, backend.deterministic, backend.allow_tf32 = before


def pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the module on the device, and a copy that replays graphs."""
    module = module.to(DEVICE).train()
    replayed = copy.deepcopy(module)
    replayed.forward = ReplayedForward(replayed)
    return module, replayed


def images(n: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 16, 16, generator=generator).to(DEVICE)


def captured(module: nn.Module) -> int:
    return len(module.forward._passes)


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
        "dataset.image_size=32",
        "batch_size=16",
    ]
    options += ["optimizer.lr=0.05", "backbone.kwargs.zero_init_residual=null"]
    results = []
    for cuda_graph in ("false", "true"):
        step = Step(DEVICE, *options, f"backbone.cuda_graph={cuda_graph}")
        torch.cuda.manual_seed(1)
        losses = torch.stack([step() for _ in range(3)])
        state = step.model.state_dict()
        numbers = {key: value.double().cpu() for key, value in state.items()}
        results.append((losses.cpu(), numbers))
    assert captured(step.model.backbone) == 2, "one for each view"
    (losses, expected), (replayed_losses, actual) = results
    torch.testing.assert_close(replayed_losses, losses, rtol=1e-4, atol=1e-5)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert (actual[key] - value).norm() <= 1e-4 * (1 + value.norm()), key


def test_gradients_accumulate_and_results_are_kept():
    plain, replayed = pair(SmallResNet(width=8))
    kept = []
    for seed in range(3):
        for module in (plain, replayed):
            y1, y2 = module(images(seed=2 * seed)), module(images(seed=2 * seed + 1))
            (y1.square().mean() + y2.sin().mean()).backward()
            kept += [y1, y2]
    results, replayed_results = kept[0::4] + kept[1::4], kept[2::4] + kept[3::4]
    assert captured(replayed) == 2
    for actual, expected in zip(replayed_results, results, strict=True):
        assert torch.equal(actual, expected)
    for actual, expected in zip(replayed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(actual.grad, expected.grad)
    for actual, expected in zip(replayed.buffers(), plain.buffers(), strict=True):
        assert torch.equal(actual, expected)


def test_weights_are_cast_in_each_step():
    """Autocast's own cache would keep the cast of the first step."""
    plain, replayed = pair(SmallResNet(width=8))
    for _ in range(2):
        results = []
        for module in (plain, replayed):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                results.append(module(images()))
            results[-1].float().sum().backward()
            with torch.no_grad():
                for weight in module.parameters():
                    weight.mul_(1.5)
        assert torch.equal(*results)
    assert captured(replayed) == 1


def test_random_numbers_are_drawn_in_each_step():
    layers = nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    plain, replayed = pair(nn.Sequential(*layers))
    results = []
    for module in (plain, replayed):
        torch.cuda.manual_seed(0)
        outputs = []
        for _ in range(3):
            output = module(images())
            output.sum().backward()
            outputs.append(output.detach())
        results.append(torch.stack(outputs))
    assert captured(replayed) == 1
    assert torch.equal(*results)
    first, second, _ = results[1]
    assert not torch.equal(first, second)


def test_other_shapes_evaluation_and_hooks_are_as_before():
    plain, replayed = pair(SmallResNet(width=8))
    for n in (16, 7, 16):
        for module in (plain, replayed):
            module(images(n)).sum().backward()
    assert captured(replayed) == 2
    assert torch.equal(plain.eval()(images()), replayed.eval()(images()))
    seen = []
    for module in (plain.train(), replayed.train()):
        module.stages[0].register_forward_hook(lambda *arguments: seen.append(arguments[2]))
        module(images())
    assert torch.equal(*seen)


def test_a_run_on_image_files_trains(tmp_path):
    """The thread that pins the loader's memory uses the device during the capture."""
    tree = write_tree(tmp_path / "images", train=40)
    options = [option for option in SMALL if not option.startswith("dataset")]
    options += ["dataset=folder", f"dataset.root={tree}", "dataset.image_size=16"]
    options += ["dataset.workers=2", "batch_size=8", "trainer.accelerator=gpu"]
    run(tmp_path / "run", *options, "backbone.cuda_graph=true")
    assert len(rows(tmp_path / "run")) == 2


def test_a_backbone_that_reads_the_device_names_the_option():
    """It comes last: a failed capture may leave the device in a bad state."""

    class Reading(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(x.mean())

    _, replayed = pair(Reading(3, 8, 3))
    with pytest.raises(UserError, match=r"backbone\.cuda_graph=false"):
        replayed(images())

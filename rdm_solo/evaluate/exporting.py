"""Export a run's backbone: ``rdm-solo export run=RUN_FOLDER``."""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from rdm_solo import __version__
from rdm_solo.cli import arguments
from rdm_solo.ground.errors import UserError
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs.files import EXPORT, write_atomically

if TYPE_CHECKING:
    from torch import nn

    from rdm_solo.methods.weight_files import Spec

log = logging.getLogger("rdm_solo")


def export(cfg: DictConfig) -> Path:
    """Write ``backbone.safetensors``, ``.pth`` and ``.json``, and return their folder."""
    import torch
    from safetensors.torch import save

    from rdm_solo.evaluate.linear_config import nonempty_options
    from rdm_solo.methods import weight_files
    from rdm_solo.runs import checkpoints, files
    from rdm_solo.runs.folder import checked_config

    if cfg.run is None:
        raise UserError("pass run=RUN_FOLDER; see --help.")
    run = Path(cfg.run)
    passed = nonempty_options(cfg, "backbone")
    weights, spec = checkpoints.read_backbone(run, cfg.checkpoint, passed)
    config = checked_config(run)
    with files.prefix_errors(run):
        backbone = weight_files.load(weights, spec, config.dataset.image_size)
    metadata = {
        "backbone": asdict(spec),
        "epoch": weights.epoch,
        "global_step": weights.step,
        "dataset": config.dataset.name,
        "method": config.method.name,
        "filter": ChosenFilter.from_config(config).label,
        "rdm_solo": __version__,
        "torchvision": torchvision_lines(backbone, spec),
    }
    state = {}
    for name, value in backbone.state_dict().items():
        state[name] = value.contiguous()
    folder = Path(cfg.out or files.inside(run, EXPORT))
    files.make_results_folder(folder)
    # safetensors stores only strings as metadata.
    header = {"format": "pt", "rdm_solo": json.dumps(metadata)}
    write_atomically(folder / "backbone.safetensors", save(state, metadata=header))
    write_atomically(folder / "backbone.pth", lambda file: torch.save(state, file))
    write_atomically(folder / "backbone.json", json.dumps(metadata, indent=2) + "\n")
    log.info(f"{spec}, epoch {weights.epoch}: backbone.safetensors, .pth and .json in {folder}")
    for line in metadata["torchvision"] or []:
        log.info(f"  {line}")
    return folder


def torchvision_lines(backbone: "nn.Module", spec: "Spec") -> list[str] | None:
    """Return Python lines that load the weights into torchvision's ResNet, None for others."""
    if spec.name not in ("resnet18", "resnet50"):
        return None
    lines = [f"model = torchvision.models.{spec.name}()"]
    if spec.stem == "small":
        lines.append(f"model.conv1 = torch.nn.{backbone.conv1}")
        lines.append("model.maxpool = torch.nn.Identity()")
    lines.append("model.load_state_dict(torch.load('backbone.pth'), strict=False)  # lacks only fc")
    return lines


def main() -> None:
    """Run the command."""
    arguments.command(export, "export", sys.argv[1:])

"""Print a digest of every number that a fixed set of small runs writes.

A change that only moves or rewrites code leaves all digests as they are on one machine:

    python tests/digests.py CHECKOUT_BEFORE > before
    python tests/digests.py > after
    diff before after
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from support.image_files import write_tree

SMALL_FOLDER = "dataset=folder dataset.root=images dataset.image_size=16 dataset.workers=1"
RUNS = {
    "target_pow": "dataset=digits method=simsiam filter=target_pow p=-0.5",
    "byol": "dataset=digits method=byol filter=online_log1p",
    "swav": "dataset=digits method=swav",
    "dino": "dataset=digits method=dino trainer.precision=bf16-mixed",
    "nnsiam": "dataset=digits method=nnsiam filter=both_pow p=-0.3",
    "symsimsiam": "method=symsimsiam dataset=textures",
    "folder": f"method=barlow_twins {SMALL_FOLDER} batch_size=8 backbone.name=small_resnet",
    "two_processes": "dataset=digits filter=online_pow trainer=ddp trainer.accelerator=cpu "
    "trainer.devices=2 batch_size=32",
}
WATCHED = """
import torch
from torch import nn
from rdm_solo import Watch

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
predictor = nn.Linear(16, 16)
model = nn.ModuleDict({"backbone": encoder[:2], "projector": encoder, "predictor": predictor})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = Watch("watched", model)
for epoch in range(6):
    for x in torch.randn(512, 32).split(64):
        z1, z2 = (encoder(x + 0.3 * torch.randn_like(x)) for _ in range(2))
        loss = -torch.cosine_similarity(predictor(z1), z2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.step(loss)
    watch.end_epoch()
"""


def digest(path: Path) -> str:
    """Return a hash of the numbers in a table, an archive of spectra, or a checkpoint's weights."""
    if path.suffix != ".ckpt":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    value = hashlib.sha256()
    weights = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    for name, tensor in weights.items():
        value.update(name.encode())
        value.update(tensor.float().numpy().tobytes())
    return value.hexdigest()


def python(checkout: Path, cwd: Path, *arguments: str) -> None:
    """Run Python in a folder, with the package of that checkout."""
    path = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{checkout}{os.pathsep}{path}"
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Print one line per file."""
    (argument,) = sys.argv[1:] or ["."]
    checkout = Path(argument).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tree(folder / "images")
        for run, options in RUNS.items():
            command = f"-m rdm_solo.train {options} max_epochs=2 hydra.run.dir={run}"
            python(checkout, folder, *command.split())
        command = "-m rdm_solo.train resume=target_pow max_epochs=3"
        python(checkout, folder, *command.split())
        python(checkout, folder, "-c", WATCHED)
        for path in sorted(folder.rglob("*")):
            is_result = path.name == "metrics.csv" or path.suffix in (".npz", ".ckpt")
            if is_result and path.name != "previous.ckpt":
                print(path.relative_to(folder), digest(path))


if __name__ == "__main__":
    main()

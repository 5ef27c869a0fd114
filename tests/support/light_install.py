"""Watch a plain loop for three epochs and write its report, with only the base dependencies.

python light_install.py FOLDER
"""

import sys
from pathlib import Path

import torch

import rdm_solo.filters
import rdm_solo.spectra
import rdm_solo.theory
from rdm_solo.report import write
from rdm_solo.watch import Watch

if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    torch.manual_seed(0)
    projector = torch.nn.Linear(12, 8)
    predictor = torch.nn.Linear(8, 8)
    model = torch.nn.ModuleDict({"projector": projector, "predictor": predictor})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(folder, model) as watch:
        for _ in range(3):
            for _ in range(4):
                z = projector(torch.randn(32, 12))
                p = predictor(z)
                loss = -torch.cosine_similarity(p, z.detach()).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.step(loss)
            watch.end_epoch()
    page = write([Path(folder)]).read_text()
    assert "it failed with" not in page
    x = torch.eye(4)
    assert rdm_solo.filters.SpectralFilter("online", "log1p")(x).isfinite().all()
    correlation = rdm_solo.spectra.correlation(x)
    effective_rank = rdm_solo.spectra.effective_rank(correlation)
    print(f"watched, reported; effective rank {float(effective_rank):.1f}")

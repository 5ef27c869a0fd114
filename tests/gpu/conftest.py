"""Settings of the whole process that tests on a GPU change."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _restored_settings():
    """Undo what Lightning and these tests set for the whole process."""
    backend = torch.backends.cudnn
    before = backend.benchmark, backend.deterministic, backend.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    backend.benchmark, backend.deterministic, backend.allow_tf32 = before

"""Callbacks are built from the config: order, and left out."""

from types import SimpleNamespace

from support.small_runs import DRAWN, configure

from rdm_solo.train.trainer import make_callbacks


def configured(folder, *overrides: str) -> list[str]:
    cfg = configure(*DRAWN, *overrides)
    callbacks = make_callbacks(cfg, folder, SimpleNamespace(filter_batch=16))
    return [type(callback).__name__ for callback in callbacks]


def test_readers_come_after_what_they_read_and_any_can_be_left_out(tmp_path):
    names = configured(tmp_path)
    for reader in ("CollapseWatch", "Pictures", "EpochTable"):
        assert names.index("Diagnostics") < names.index(reader)
    for reader in ("CollapseWatch", "EpochTable", "Progress"):
        assert names.index("WeightedKNN") < names.index(reader)
    assert set(names) - set(configured(tmp_path, "~callbacks.watch")) == {"CollapseWatch"}

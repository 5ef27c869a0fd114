"""The command ``python -m rdm_solo.preview``, whose help does not wait for torch."""

from omegaconf import DictConfig

from rdm_solo import cli


def _job(cfg: DictConfig) -> None:
    from rdm_solo.preview.show import preview  # with torch and matplotlib: seconds

    preview(cfg)


cli.command(_job, "preview", open_groups=["filter"])

"""What TensorBoard shows of a folder, and what ``wandb sync`` sends to a local server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.fake_wandb import Server


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = accumulator(folder)
    return {t: [(e.step, e.value) for e in read.Scalars(t)] for t in read.Tags()["scalars"]}


def accumulator(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return read


def shown_steps(folder: Path, tag: str) -> list[int]:
    """The steps that the page of TensorBoard draws, which reads by other code than the above."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [event.step for event in read.Tensors(tag)]


def hparams_tab(folder: Path) -> list[Any]:
    """What TensorBoard's HPARAMS tab is answered for the runs below a folder."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    runs.Reload()
    provider = data_provider.MultiplexerDataProvider(runs, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    asked = api_pb2.ListSessionGroupsRequest(
        slice_size=9, allowed_statuses=api_pb2.Status.values(), experiment_name=""
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", asked)
    return list(handler.run().session_groups)


def sync(server: Server, parts: list[Any]) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("wandb"), "sync", *map(str, parts)],
        cwd=Path(parts[-1]).parent,  # it leaves its own log there
        env={**os.environ, **server.environment()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    server.close()
    assert done.returncode == 0, done.stderr

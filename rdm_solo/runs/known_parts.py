"""What the config in a run's folder may ask for: this package's own parts, by a literal list.

A folder may come from a stranger, so a command that builds something from it takes nothing else:
no function by another name, no text for an option that is none of the package's, no number that
only serves to exhaust the machine. A name of the user's own counts when it is typed again.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rdm_solo import filters
from rdm_solo.messages import UserError, shown
from rdm_solo.methods.weight_files import FETCHING, is_plain_word

# Parts of a config that hold options.
SECTIONS = (
    *("method", "filter", "backbone", "optimizer", "scheduler", "dataset", "trainer", "logger"),
    *("callbacks", "diagnostics", "pictures", "watch", "knn", "checkpoint"),
)

# Where a `_target_` may stand, and what it may name there. Parameters are not listed: each gets a
# number, true, false, null or a word of WORDS, and the function refuses one that it does not have.
PARTS = {
    "dataset.source": (
        *("rdm_solo.data.digits", "rdm_solo.data.cifar10", "rdm_solo.data.cifar100"),
        *("rdm_solo.data.synthetic", "rdm_solo.data.folder", "rdm_solo.data.imagenet"),
        *("rdm_solo.data.imagenet100", "rdm_solo.data.shards"),
    ),
    "dataset.views": ("rdm_solo.data.Views",),
    "dataset.views.pipelines.*": ("rdm_solo.data.Pipeline",),
    "callbacks.*": (
        *("rdm_solo.callbacks.Diagnostics", "rdm_solo.callbacks.WeightedKNN"),
        *("rdm_solo.callbacks.CollapseWatch", "rdm_solo.callbacks.Pictures"),
        *("rdm_solo.callbacks.EpochTable", "rdm_solo.callbacks.RankFigure"),
        "rdm_solo.callbacks.Progress",
    ),
    "logger.*": (
        "rdm_solo.loggers.event_files.TensorBoard.open",
        "rdm_solo.loggers.weights_biases.WeightsAndBiases.open",
    ),
}
CONVERTED = ("dataset.source", "dataset.views")  # may say `_convert_: all`

# Functions of singular values: the registered ones, and those of torch that only compute.
FILTER_FUNCTIONS = (
    *("identity", "pow", "log", "log1p", "log1p_sq"),
    *(f"torch.{name}" for name in ("asinh", "atan", "erf", "expm1", "log", "log10", "log1p")),
    *(f"torch.{name}" for name in ("log2", "rsqrt", "sigmoid", "sqrt", "square", "tanh")),
)

# Options whose values are words; those of all others are numbers, true, false or null.
WORDS = (
    *("method.name", "method.center", "filter.name", "filter.branch", "filter.function"),
    "filter.solver",
    *("p.schedule", "backbone.name", "backbone.stem", "backbone.compile", "optimizer.name"),
    *("dataset.name", "dataset.root", "dataset.train", "dataset.val", "dataset.interpolation"),
    *("dataset.cache", "dataset.source.cache"),
    *(f"dataset.source.{name}" for name in ("root", "train", "val", "interpolation")),
    *(f"logger.*.{name}" for name in ("project", "entity", "name", "group", "tags.*")),
    *(f"trainer.{name}" for name in ("accelerator", "devices", "strategy", "precision")),
    *("trainer.gradient_clip_algorithm", "trainer.max_time"),
)
# Arguments of Lightning's Trainer that neither write elsewhere nor make an object by its name.
TRAINER = (
    *("accelerator", "devices", "strategy", "num_nodes", "precision", "accumulate_grad_batches"),
    *("sync_batchnorm", "gradient_clip_val", "gradient_clip_algorithm", "enable_progress_bar"),
    *("limit_train_batches", "limit_val_batches", "log_every_n_steps", "check_val_every_n_epoch"),
    *("val_check_interval", "min_epochs", "min_steps", "max_steps", "max_time", "deterministic"),
    *("benchmark", "detect_anomaly", "num_sanity_val_steps", "enable_model_summary"),
    *("overfit_batches", "inference_mode", "use_distributed_sampler"),
    "reload_dataloaders_every_n_epochs",
)
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")

# The largest numbers, by option; of all others MOST.
MOST = 2**32
LARGEST = {
    "max_epochs": 10**6,
    "threads": 1024,
    "dataset.workers": 256,
    "dataset.source.workers": 256,
    "dataset.views.pipelines.*.num_crops": 64,
    "backbone.kwargs.*": 2**16,
    "method.kwargs.*": 2**20,
    "method.kwargs.sk_iters": 1000,
    "trainer.devices": 1024,
    "trainer.devices.*": 1024,
    "trainer.num_nodes": 1024,
}
# Bytes of generated images, and values of a batch of views.
MOST_GENERATED, MOST_VALUES = 2**28, 2**30
DEEPEST = 10  # levels of a section

Key = tuple[str, ...]


def check(
    config: Mapping[str, Any], parts: Sequence[str], source: str, typed: Collection[str] = ()
) -> None:
    """Refuse what these parts of a config ask for and a folder may not ask for by itself.

    ``config`` has plain values whose references are followed; ``source`` names its file in the
    message; ``typed`` are the dotted names of options that the user has typed again.
    """
    for part in parts:
        held = config.get(part)
        if part in SECTIONS and not isinstance(held, (Mapping, type(None))):
            raise UserError(
                f"{source} gives {part}={_shown(held)}, where a group of options belongs."
            )
        if held is not None:
            for key, value in _leaves(held, (part,), source):
                name = ".".join(key)
                again = any(name == own or name.startswith(f"{own}.") for own in typed)
                reason = None if again else _fault(key, value, config, typed)
                if reason:
                    raise _refusal(source, name, value, reason)
    _check_sizes(config, parts, source, typed)


def is_filter(function: Any) -> bool:
    """Whether a folder may name that function: it is in the list, or this process registered it."""
    return function is None or function in FILTER_FUNCTIONS or function in filters.names()


def _refusal(source: str, name: str, value: Any, reason: str) -> ValueError:
    text = _shown(value)
    # Hydra takes a key that a command does not list by itself with ++ alone.
    again = f"++{name}" if name.startswith("backbone.kwargs.") else name
    return ValueError(
        f"{source} gives {name}={text}, {reason}, so it is not taken from a folder. If you trust "
        f"it, type {again}={text if len(text) < 60 else '...'} again on the command line."
    )


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() else shown(value)
    return text if len(text) < 100 else f"{text[:97]}..."


def _leaves(node: Any, key: Key, source: str) -> Iterator[tuple[Key, Any]]:
    """Every value that is no mapping and no list, with the parts of its name."""
    if len(key) > DEEPEST:
        raise UserError(
            f"{source}: {'.'.join(key[:3])} has more than {DEEPEST} levels, which no run's has."
        )
    if isinstance(node, Mapping):
        for name, value in node.items():
            if not isinstance(name, str) or not re.fullmatch(r"\w[\w-]*", name, re.ASCII):
                raise UserError(
                    f"{source}: {'.'.join(key)} has the key {_shown(name)}, which is no option's "
                    "name: letters, digits, _ and - are allowed."
                )
            yield from _leaves(value, (*key, name), source)
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(node):
            yield from _leaves(value, (*key, str(number)), source)
    else:
        yield key, node


def _matches(key: Key, pattern: str) -> bool:
    parts = pattern.split(".")
    return len(parts) == len(key) and all(p in ("*", k) for p, k in zip(parts, key))


def _fault(key: Key, value: Any, config: Mapping[str, Any], typed: Collection[str]) -> str | None:
    """Why a value may not come from a folder; None where it may."""
    place, leaf = key[:-1], key[-1]
    if leaf == "_convert_" and ".".join(place) in CONVERTED and value == "all":
        return None
    known = next((PARTS[pattern] for pattern in PARTS if _matches(place, pattern)), None)
    if leaf == "_target_" and known is not None:
        return None if value in known else "which is not in this package and is not run"
    if any(name.startswith("_") for name in key):
        return "which is an instruction for Hydra (its name begins with _)"
    own = f"{'.'.join(place)}._target_" in typed  # whose parameters the user knows
    if key[0] == "trainer" and key[1] not in TRAINER:
        return "an argument of Lightning's Trainer that may read or write elsewhere"
    if key[:2] == ("backbone", "kwargs") and key[2:3] and key[2].startswith(FETCHING):
        return "which may fetch or read files" if value else None
    if key[:2] == ("backbone", "kwargs") and is_plain_word(value):
        return None
    if isinstance(value, str):
        return _fault_of_word(key, value, own)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        limit = next((LARGEST[p] for p in reversed(LARGEST) if _matches(key, p)), MOST)
        if not (isinstance(value, float) and math.isfinite(value)) and not isinstance(value, int):
            return "which is not a finite number"
        return f"which is more than {limit:,}" if abs(value) > limit else None
    if value is None or isinstance(value, bool):
        return None
    return "which is neither a number nor a word"


def _fault_of_word(key: Key, value: str, own: bool) -> str | None:
    if "${" in value or "$ {" in value:
        return "which asks for something that is not in the config, such as an environment variable"
    if key == ("filter", "function"):
        return None if is_filter(value) else "which is not in this package and is not run"
    if key == ("trainer", "strategy") and value not in STRATEGIES:
        return f"which is none of {', '.join(STRATEGIES)}"
    if key[-1] in ("train", "val"):
        plain = re.sub(r"\{\d+\.\.\d+\}", "", value)  # without the ranges of shards
        if plain.startswith(("/", "\\", "~")) or ".." in plain:
            return "which leads out of the data set's folder"
    if key[-1] in ("root", "cache") and value.startswith(("//", "\\\\")):
        return "which leads to another machine"
    if not own and not any(_matches(key, pattern) for pattern in WORDS):
        return "a word where a number, true, false or null belongs"
    return None


def _check_sizes(
    config: Mapping[str, Any], parts: Sequence[str], source: str, typed: Collection[str]
) -> None:
    """Refuse generated images and batches of views that fit into no memory."""
    if "dataset" not in parts or any(name.startswith("dataset.") for name in typed):
        return

    def product(options: Any, *names: str) -> int:
        return math.prod(v for v in (_at(options, name) for name in names) if isinstance(v, int))

    dataset = config.get("dataset")
    generated = _at(dataset, "source")
    for part in ("num_train", "num_val", "num_classes"):
        if product(generated, part, "size", "size", "channels") > MOST_GENERATED:
            what = "with so many pixels that they fill the memory"
            raise _refusal(source, f"dataset.source.{part}", _at(generated, part), what)
    pipelines = _at(_at(dataset, "views"), "pipelines")
    pipelines = pipelines if isinstance(pipelines, list) else []
    pixels = sum(product(pipeline, "size", "size", "num_crops") for pipeline in pipelines)
    if product(config, "batch_size") * 3 * pixels > MOST_VALUES:
        what = "whose views of a batch fill the memory"
        raise _refusal(source, "dataset.image_size", _at(dataset, "image_size"), what)


def _at(options: Any, name: str) -> Any:
    return options.get(name) if isinstance(options, Mapping) else None

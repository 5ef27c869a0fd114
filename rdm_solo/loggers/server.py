"""Opens a W&B run online where the server answers within seconds, and offline where not."""

import logging
import ssl
import threading
import urllib.error
import urllib.request
from typing import Any

log = logging.getLogger("rdm_solo")

ANSWER_TIMEOUT = 5.0  # seconds for the server's first answer
INIT_TIMEOUT = 20.0  # seconds to open a run at a server that has answered; W&B's own are 90
OFFLINE_MODES = ("offline", "dryrun", "disabled")


def open_run(options: dict[str, Any], offline: bool, finish_timeout: float) -> Any:
    """``wandb.init``, offline where the user or WANDB_MODE says so or the server cannot be used."""
    import wandb

    options["settings"] = wandb.Settings(
        silent=True,  # we say ourselves where the run is, in one line
        init_timeout=INIT_TIMEOUT,
        finish_timeout=finish_timeout,
        finish_timeout_raises=True,
    )
    mode = _global_settings().mode  # of WANDB_MODE
    if not offline and mode not in OFFLINE_MODES:
        reason = obstacle()
        try:
            if reason is None:
                run = wandb.init(**options)
                log.info(f"Weights & Biases: {run.url}")
                return run
        except Exception as error:  # whatever the service or its client raises
            reason = f"{error} ({type(error).__name__})"
            wandb.teardown()  # its process would refuse the same id a second time
            _global_settings()
        log.warning(f"warning: Weights & Biases: {reason}. The run is kept offline.")
    try:
        return wandb.init(**options, mode="disabled" if mode == "disabled" else "offline")
    except Exception as error:  # its own process does not start
        log.warning(f"warning: Weights & Biases keeps nothing of this run: {error}")
        return wandb.init(mode="disabled")


def obstacle() -> str | None:
    """Why no run can be opened at the server, in words; None where it can. Never asks for a key."""
    import wandb

    mode = _global_settings().mode
    if mode in OFFLINE_MODES:
        return f"WANDB_MODE is {mode}"
    try:
        if not wandb.login(prompt=False, verify=False):
            return "no login (run `wandb login` once, or set WANDB_API_KEY)"
    except Exception as error:  # a key of the wrong form
        return str(error)
    return silence()


def silence() -> str | None:
    """Why the server does not answer within seconds, in words; None where it does.

    W&B 0.31 has ``wandb.Api(timeout=...)`` for this, but a process that ends soon after such a
    timeout can wait for W&B's service for ever (seen once in nine trials).
    """
    settings = _global_settings()
    if settings.http_proxy or settings.https_proxy:  # W&B's own, which urllib does not use
        return None
    url = settings.base_url
    answers: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT).close()
        except urllib.error.HTTPError:
            pass  # an answer, too
        except Exception as error:  # an address that is none, as well
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return
            if not isinstance(reason, ssl.SSLError):  # W&B has certificates of its own
                answers.append(f"{url} cannot be reached: {reason}")
        answers.append(None)

    thread = threading.Thread(target=ask, daemon=True)  # looking up a name has no timeout
    thread.start()
    thread.join(ANSWER_TIMEOUT)
    return answers[0] if answers else f"{url} does not answer within {ANSWER_TIMEOUT:g} s"


def _global_settings() -> Any:
    """W&B's settings, of its environment variables and files; its own messages are off."""
    import wandb

    return wandb.setup(settings=wandb.Settings(silent=True)).settings

"""Whether Weights & Biases can be reached, and a run that opens offline where it cannot."""

from __future__ import annotations

import logging
import ssl
import threading
import urllib.error
import urllib.request
from typing import Any

__all__ = ["INIT_TIMEOUT", "obstacle", "open_run", "unreachable"]

log = logging.getLogger("rdm_solo")

PATIENCE = 5.0  # seconds for the server's first answer
INIT_TIMEOUT = 20.0  # seconds to open a run at a server that has answered; W&B's own are 90


def open_run(options: dict[str, Any], online: bool) -> Any:
    """``wandb.init``, online where it can be, and offline otherwise, within seconds."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))  # its lines on where it read the login
    mode = wandb.setup().settings.mode  # WANDB_MODE
    if online and mode in ("online", "shared"):
        reason = obstacle()
        if reason is None:
            try:
                run = wandb.init(**options, mode=mode)
            except Exception as error:  # whatever the service or its client raises
                reason = f"{error} ({type(error).__name__})"
                wandb.teardown()  # its process keeps the run's id as taken
                wandb.setup(settings=wandb.Settings(silent=True))
            else:
                log.info(f"Weights & Biases: {run.url}")
                return run
        log.warning(f"warning: Weights & Biases: {reason}. The run is kept offline.")
    try:
        return wandb.init(**options, mode="disabled" if mode == "disabled" else "offline")
    except Exception as error:  # its own process does not start
        log.warning(f"warning: Weights & Biases keeps nothing of this run: {error}")
        return wandb.init(mode="disabled")


def obstacle() -> str | None:
    """Why nothing can go to the server, in words; None where nothing is known against it."""
    import wandb
    from wandb.sdk.lib import wbauth

    settings = wandb.setup().settings
    try:  # init() would ask at the terminal, and wait
        login = wbauth.authenticate_session(
            host=settings.base_url, source="rdm_solo", prompt=False, update_session=False
        )
    except Exception as error:  # a key that cannot be one
        return str(error)
    if login is None:
        return "no login (run `wandb login` once, or set WANDB_API_KEY)"
    return unreachable(settings)


def unreachable(settings: Any) -> str | None:
    """Why the server of W&B's settings does not answer, within seconds; None where it does."""
    if settings.http_proxy or settings.https_proxy:  # W&B's own, which we do not go through
        return None
    return _silent(settings.base_url)


def _silent(url: str) -> str | None:
    """A thread, since looking up a name has no timeout."""
    late = f"{url} does not answer within {PATIENCE:g} s"
    answers: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE).close()
        except urllib.error.HTTPError:
            answers.append(None)  # it answers
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLError):  # it answers; W&B has certificates of its own
                answers.append(None)
            elif isinstance(reason, TimeoutError):
                answers.append(late)
            else:
                answers.append(f"{url} cannot be reached: {reason}")
        except Exception as error:  # an address that is none
            answers.append(f"{url} cannot be reached: {error}")
        else:
            answers.append(None)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answers[0] if answers else late

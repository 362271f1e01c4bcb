"""Copies in W&B, each run under its hash; offline if the user is not logged in."""

import os
from pathlib import Path
from typing import Any

from recombine.basics.errors import require
from recombine.storage.trackers.copy import Copy, Write

# No output and no statistics of the machine: the run has ended. Short timeouts, so that a server
# that does not answer does not delay the end of the sweep.
SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "x_disable_stats": True,
    "init_timeout": 30,
    "finish_timeout": 60,
    "finish_timeout_raises": True,
}


def open_wandb(experiment: str, folder: Path) -> Write:
    """A function that writes copies to W&B."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    is_logged_in = wandb.login(prompt=False, verify=False)
    mode = None if is_logged_in else os.environ.get("WANDB_MODE") or "offline"
    require(
        mode in (None, "offline", "dryrun", "disabled"),
        f"WANDB_MODE is {mode}, but you are not logged in to W&B: run `wandb login` first, or set "
        "WANDB_MODE=offline",
    )
    folder.mkdir(parents=True, exist_ok=True)  # W&B uses another folder if this one is missing

    def write(copy: Copy) -> None:
        with wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "recombine",
            group=experiment,
            id=copy.run,
            name=copy.name,
            config=copy.config,
            dir=os.environ.get("WANDB_DIR") or folder,
            mode=mode,  # pyright: ignore[reportArgumentType]
            reinit="create_new",  # a run that the caller has opened stays open
            settings=wandb.Settings(**SETTINGS),
        ) as wandb_run:
            for step, scores in copy.scores.items():
                wandb_run.log(scores, step=step)

    return write

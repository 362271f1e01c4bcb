"""Copies in W&B, each run under its hash; offline where nobody is logged in."""

import os
from pathlib import Path
from typing import Any

from recombine.basics.errors import require
from recombine.storage.trackers.copy import Copy, Write

# A finished run is not watched, and a server that does not answer must not hold up the sweep's end.
SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "x_disable_stats": True,
    "init_timeout": 30,
    "finish_timeout": 60,
    "finish_timeout_raises": True,
}


def open_wandb(experiment: str, folder: Path) -> Write:
    """What writes a copy there."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    known = wandb.login(prompt=False, verify=False)
    mode = None if known else os.environ.get("WANDB_MODE") or "offline"
    require(
        mode in (None, "offline", "dryrun", "disabled"),
        f"WANDB_MODE is {mode}, but nobody is logged in to W&B: call `wandb login` first, or set it to offline",
    )
    folder.mkdir(parents=True, exist_ok=True)  # wandb would go elsewhere

    def write(copy: Copy) -> None:
        with wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "recombine",
            group=experiment,
            id=copy.run,
            name=copy.name,
            config=copy.config,
            dir=os.environ.get("WANDB_DIR") or folder,
            mode=mode,  # pyright: ignore[reportArgumentType]
            reinit="create_new",  # a run of the caller's own goes on
            settings=wandb.Settings(**SETTINGS),
        ) as there:
            for step, scores in copy.scores.items():
                there.log(scores, step=step)

    return write

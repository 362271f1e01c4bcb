"""Copies in TensorBoard's event files, one folder for each run."""

import time
from pathlib import Path

from recombine.storage.trackers.copy import Copy, Write


def open_tensorboard(experiment: str, folder: Path) -> Write:
    """A function that writes copies to event files in `folder/tensorboard`."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def write(copy: Copy) -> None:
        run_folder = folder / "tensorboard" / copy.run
        earlier_files = list(run_folder.glob("events.out.tfevents.*"))
        writer = EventFileWriter(str(run_folder))
        config = hparams_pb(copy.config, trial_id=copy.name)
        writer.add_event(Event(wall_time=time.time(), summary=config))
        for step, scores in copy.scores.items():
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scores.items()]
            writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writer.close()
        for file in earlier_files:
            file.unlink()

    return write

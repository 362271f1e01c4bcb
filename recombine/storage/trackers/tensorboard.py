"""Copies in TensorBoard's event files, a folder per run."""

import time
from pathlib import Path

from recombine.storage.trackers.copy import Copy, Write


def open_tensorboard(experiment: str, folder: Path) -> Write:
    """What writes a copy there."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def write(copy: Copy) -> None:
        place = folder / "tensorboard" / copy.run
        earlier = list(place.glob("events.out.tfevents.*"))
        writer = EventFileWriter(str(place))
        writer.add_event(
            Event(wall_time=time.time(), summary=hparams_pb(copy.config, trial_id=copy.name))
        )
        for step, scores in copy.scores.items():
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scores.items()]
            writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writer.close()
        for file in earlier:
            file.unlink()

    return write

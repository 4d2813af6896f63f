"""Ranks that train and publish until they are killed.

Run as: publish_on_ranks.py FOLDER TARGET LIFE.

Before each publish the content of the model is written to FOLDER, for the test that kills.
"""

import os
import pickle
import sys
from pathlib import Path

from serving.test_ranks import Trainer, build, content_of

import group_embedding as ge


def main(folder, target, life):
    trainer = Trainer()
    folder = Path(folder)
    (folder / f"pid-{life}-{trainer.rank}").write_text(str(os.getpid()))
    publisher = ge.serving.Publisher(
        trainer.model, target, build=build, every_seconds=0, base_every=5, keep_bases=99
    )
    for step in range(10**6):
        trainer.step(step)
        trainer.erase(step)
        content = content_of(trainer.model)
        if trainer.rank == 0:
            (folder / f"content-{life}-{step}").write_bytes(pickle.dumps(content))
        publisher.after_step(step)


if __name__ == "__main__":
    main(*sys.argv[1:])

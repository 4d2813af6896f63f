"""The data sets: downloads, checks them, and writes the files that the examples train on.

$ python examples/fetch_files.py shop              # prints the paths of train and test
$ python examples/fetch_files.py shop --generated  # small files of the same schema instead
$ python -m group_embedding train examples/configs/shop.yaml

Each data set has the licence of its publisher, and is downloaded from where the publisher, for MIND
a project of its own, offers it.
The publishers state no checksums. The first download writes its own into SHA256SUMS in the folder,
in the form of sha256sum; later runs, and a folder to which a trusted SHA256SUMS was copied, refuse
other files. Files that lie in the folder already are not downloaded.
"""

import argparse
import hashlib
import shutil
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import group_embedding as ge
from from_files import logs
from from_files.data_sets import DATA_SETS

CHUNK = 1 << 20  # bytes
TRAINING = 6 / 7  # of the lines of Criteo's seven days, and of a shop's rows
GENERATED_ROWS = {"train": 20_000, "test": 5_000}
MIND = "https://huggingface.co/datasets/Recommenders/MIND/resolve/main"
PLACES = {
    # Display Advertising Challenge, 4.6 GB: train.txt has seven days in the order of time.
    "criteo": [
        "https://go.criteo.net/criteo-research-kaggle-display-advertising-challenge-dataset.tar.gz"
    ],
    # Events of a large shop by REES46, October 2019, 1.7 GB.
    "shop": ["https://data.rees46.com/datasets/marketplace/2019-Oct.csv.gz"],
    # MIND-small by Microsoft News, 84 MB.
    "news": [f"{MIND}/MINDsmall_train.zip", f"{MIND}/MINDsmall_dev.zip"],
}


def fetch(data_set, folder):
    """Downloads the files of a data set into a folder and checks them.

    Returns:
        Their paths.

    Raises:
        ValueError: a file is not the one in SHA256SUMS.
        OSError: a file cannot be downloaded; the message says where it is offered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_fetch_file(place, folder) for place in PLACES[data_set]]


def _fetch_file(place, folder):
    path = folder / place.rsplit("/", 1)[1]
    if not path.exists():
        # Written aside and renamed: a run that is killed leaves no half file.
        whole = path.with_name(path.name + ".part")
        try:
            with urllib.request.urlopen(place) as source, open(whole, "wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
        except OSError as error:
            raise OSError(
                f"{place}: {error}; download it by hand, and put it into {folder}"
            ) from error
        whole.rename(path)
    _check(path, folder / "SHA256SUMS")
    return path


def _check(path, sums):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    got, lines = digest.hexdigest(), sums.read_text().splitlines() if sums.exists() else []
    expected = dict(reversed(line.split(maxsplit=1)) for line in lines).get(path.name)
    if expected is None:
        sums.write_text("".join(f"{line}\n" for line in [*lines, f"{got}  {path.name}"]))
    elif got != expected:
        raise ValueError(
            f"{path}: expected sha256 {expected}, as {sums} says, got {got}; remove the file to "
            "download it again"
        )


def prepare_criteo(paths, folder):
    """Splits the lines of train.txt: the first six sevenths, and the others, are later days."""
    with tarfile.open(paths[0]) as archive:
        names = archive.getnames()
        name = next((name for name in names if name.endswith("train.txt")), None)
        if name is None:
            raise ValueError(f"{paths[0]}: expected a member train.txt, got {', '.join(names)}")
        size = archive.getmember(name).size
        source = archive.extractfile(name)
        with open(folder / "train.tsv", "wb") as train, open(folder / "test.tsv", "wb") as test:
            read = 0
            for line in source:
                (train if read < TRAINING * size else test).write(line)
                read += len(line)
    return folder / "train.tsv", folder / "test.tsv"


def prepare_shop(paths, folder):
    """A row for each view; the last seventh of the rows, by time, is for the test."""
    rows = folder / "views.parquet"
    logs.write_shop(paths, rows)
    train, test = folder / "train.parquet", folder / "test.parquet"
    ge.data.split_by_time(rows, "time", train, test, fraction=TRAINING)
    return train, test


def prepare_news(paths, folder):
    """A row for each news of an impression; MIND's own split, by time."""
    folders = []
    for path in paths:
        folders.append(folder / path.stem)
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(("news.tsv", "behaviors.tsv")):
                    folders[-1].mkdir(exist_ok=True)
                    (folders[-1] / Path(name).name).write_bytes(archive.read(name))
    news = [one / "news.tsv" for one in folders]
    written = folder / "train.parquet", folder / "test.parquet"
    for one, path in zip(folders, written):
        logs.write_news(news, one / "behaviors.tsv", path)
    return written


def generate(data_set, folder, rows=None):
    """Writes generated files, which depend on nothing but the numbers of their rows.

    Args:
        data_set: a name in `DATA_SETS`.
        folder: where they are written.
        rows: {"train": rows, "test": rows}.

    Returns:
        Their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for seed, (name, number) in enumerate((rows or GENERATED_ROWS).items(), 1):
        paths.append(folder / f"{name}.{DATA_SETS[data_set].ending}")
        DATA_SETS[data_set].write(paths[-1], number, seed)
    return paths


PREPARE = {"criteo": prepare_criteo, "shop": prepare_shop, "news": prepare_news}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_set", choices=PLACES)
    parser.add_argument("--folder", type=Path, help="default: data/<data set>")
    parser.add_argument("--generated", action="store_true", help="small files, made here")
    chosen = parser.parse_args()
    folder = chosen.folder or Path("data") / chosen.data_set
    if chosen.generated:
        train, test = generate(chosen.data_set, folder)
    else:
        train, test = PREPARE[chosen.data_set](fetch(chosen.data_set, folder), folder)
    print(f"--train {train} --test {test}")


if __name__ == "__main__":
    main()

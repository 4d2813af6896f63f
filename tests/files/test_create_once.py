"""Files that are created once: of many writers, one succeeds."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from group_embedding.files import remote_files
from group_embedding.files.create_once import create_file


@pytest.fixture(params=["s3", pytest.param("hdfs", marks=pytest.mark.slow), "memory"])
def folder(request):
    pytest.importorskip("fsspec")
    if request.param == "memory":
        return f"memory://{os.urandom(4).hex()}"
    return request.getfixturevalue(f"{request.param}_folder")


def test_one_of_many_writers_succeeds(folder):
    # Given eight writers with contents of their own
    url = f"{folder}/sub/record"
    remote_files.write_file(f"{folder}/sub/other", b"other")

    def write(number):
        try:
            create_file(url, b"%d" % number)
            return number
        except FileExistsError as error:
            assert "it exists already" in str(error) and url in str(error)
            return None

    # When all write the same file
    with ThreadPoolExecutor(8) as threads:
        written = [number for number in threads.map(write, range(8)) if number is not None]

    # Then the content is that of the only one that succeeded, and no other file is left
    (winner,) = written
    with remote_files.open_file(url) as file:
        assert file.read() == b"%d" % winner
    assert remote_files.list_folder(f"{folder}/sub") == ["other", "record"]


def test_a_write_whose_answer_was_lost_is_known(folder):
    # Given a file that a writer created, which does not know it
    create_file(f"{folder}/record", b"mine")

    # When it writes again, Then that is no error; and another content is one
    create_file(f"{folder}/record", b"mine")
    with pytest.raises(FileExistsError):
        create_file(f"{folder}/record", b"another")

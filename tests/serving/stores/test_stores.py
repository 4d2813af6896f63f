"""The promises of every store: the tests run on each of the real services."""

import os

import pytest
from support.cases.written_versions import Writer, bytes_of

from group_embedding.serving import TargetError, open_target
from group_embedding.serving.__main__ import main
from group_embedding.serving.mirror.mirror import Mirror
from group_embedding.serving.mirror.mirror_status import MirrorStatus
from group_embedding.serving.publish.version_writer import Content
from group_embedding.serving.stores import open_store, records
from group_embedding.serving.stores.targets import FileTarget

# HDFS and Google's storage are as S3 but for what these tests do.
_rare = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("hdfs", "gs")]
everywhere = pytest.mark.parametrize("url", ["kafka", "redis", "s3", *_rare], indirect=True)


class Replica:
    """A mirror of a store, its folder, and the versions that it has had, in their order."""

    def __init__(self, url, folder):
        self._url, self._folder = url, folder
        self.seen = []
        self.begin()

    def begin(self):
        """Starts the mirror, again if it ran."""
        self.source = open_store(self._url)
        self.target = FileTarget(str(self._folder))
        self.mirror = Mirror(self.source, self.target, MirrorStatus(str(self._folder)))

    def follow(self):
        self.seen.append(self.mirror.follow())
        return self.seen[-1]

    def end(self):
        self.source.close()
        self.target.close()


@pytest.fixture
def make(url, tmp_path):
    """Makes writers and replicas of the store, which are closed at the end."""
    made = []

    def one(kind):
        folder = tmp_path / f"{kind.__name__}-{len(made)}"
        folder.mkdir()
        made.append(kind(url, folder))
        return made[-1]

    yield one
    for each in made:
        each.close() if isinstance(each, Writer) else each.end()


@everywhere
def test_replicas_reach_every_version_and_converge(make):
    # Given three mirrors, one of which is away after version 2
    writer = make(Writer)
    replicas = [make(Replica) for _ in range(3)]
    away = replicas[2]

    # When a base, deltas and another base are published
    for number, write in enumerate([writer.base, *[writer.delta] * 3, writer.base, writer.delta]):
        write()
        for replica in replicas if number < 2 else replicas[:2]:
            replica.follow()
    away.follow()

    # Then two have had every version, the third has the newest, and all have the same bytes
    assert replicas[0].seen == replicas[1].seen == [1, 2, 3, 4, 5, 6]
    assert away.seen == [1, 2, 6]
    expected = [bytes_of(writer.target, version) for version in (5, 6)]
    for replica in replicas:
        assert [bytes_of(replica.target, version) for version in (5, 6)] == expected


def test_a_replica_goes_on_where_it_was_or_fetches_a_base(make):
    # Given a replica at version 2
    writer, replica = make(Writer), make(Replica)
    writer.base()
    writer.delta()
    assert replica.follow() == 2
    replica.end()

    # When it starts again, Then it fetches the deltas since
    writer.delta()
    replica.begin()
    assert replica.follow() == 3 and replica.target.versions() == [1, 2, 3]

    # And a new one fetches the newest base and the deltas after it alone
    writer.base()
    writer.delta()
    newcomer = make(Replica)
    assert newcomer.follow() == 5 and newcomer.target.versions() == [4, 5]
    assert bytes_of(newcomer.target, 4) == bytes_of(writer.target, 4)


@everywhere
def test_files_of_many_chunks_and_of_none_come_whole(url, make):
    # Given a base whose files take several chunks, and one that is empty
    writer, replica = make(Writer), make(Replica)
    writer.base(num_files=4, size=1_300_001)

    # When it is mirrored
    replica.follow()

    # Then each file is the same
    expected = bytes_of(writer.target, 1)
    assert {len(content) for content in expected.values()} >= {0, 1_300_001, 2_600_002, 3_900_003}
    assert bytes_of(replica.target, 1) == expected


@pytest.mark.parametrize("url", ["kafka", "redis"], indirect=True)
def test_a_large_base_takes_little_memory(url, make, tmp_path):
    # Given a base of 160 MB, whose content does not compress
    writer, replica = make(Writer), make(Replica)
    writer.base()
    replica.follow()
    (tmp_path / "large").mkdir()
    with open(tmp_path / "large" / "saved_model.pb", "wb") as file:
        for _ in range(160):
            file.write(os.urandom(1 << 20))
    content = Content(2, str(tmp_path / "large"), None, {})
    before = memory_after(lambda: None)

    # When it is published and mirrored, Then less than half of it is ever in memory
    peak = memory_after(lambda: (writer.writer.write(content), replica.follow()))
    assert replica.target.newest() == 2
    assert peak - before < 80 << 20


def memory_after(act):
    """The most bytes that this process has during an act."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # from now on
    act()
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def test_a_new_publisher_takes_over_and_the_former_learns_it(make):
    # Given a publisher at version 2, and a replica
    former, replica = make(Writer), make(Replica)
    former.base()
    former.delta()

    # When another one publishes, and the former goes on
    successor = make(Writer)
    successor.base()
    successor.delta()
    with pytest.raises(TargetError, match="expected the newest version to be what this publisher"):
        former.delta()

    # Then there are the versions of one after those of the other
    assert replica.follow() == 4
    steps = [records.decode(successor.target.record(v), "").step for v in (1, 2, 3, 4)]
    assert steps == [1, 2, 1, 2]


@everywhere
def test_of_two_that_write_one_version_one_is_told(url, make, monkeypatch):
    if url.startswith("gs://"):
        pytest.skip("the tests' server of Google's protocol has no conditional writes")
    # Given two publishers that both found version 1 to be the newest
    first, second = make(Writer), make(Writer)
    first.base()
    monkeypatch.setattr(second.target, "newest", lambda: 1)

    # When both write version 2
    first.delta()
    with pytest.raises(TargetError, match="expected version 2 to be new, got one"):
        second.base()

    # Then the first is the one that is there
    replica = make(Replica)
    assert replica.follow() == 2
    assert bytes_of(replica.target, 2) == bytes_of(first.target, 2)


def test_commands_read_a_store_and_roll_it_back(url, make, capsys):
    # Given a store with a base and two deltas, and a replica
    writer, replica = make(Writer), make(Replica)
    writer.base()
    writer.delta()
    writer.delta()
    replica.follow()

    # When people verify it, and go back
    assert main(["verify", url]) == 0
    assert main(["rollback", url, "--to", "2"]) == 0

    # Then a replica, and a new one, have the version that goes back and what it goes back to
    newcomer = make(Replica)
    assert replica.follow() == newcomer.follow() == 4
    assert newcomer.target.versions() == [1, 2, 4]
    assert "version 4 has the content of version 2" in capsys.readouterr().out
    assert records.decode(replica.target.record(4), "").content == 2


def test_a_store_without_versions_says_so(url, make):
    # Given a store in which nobody published
    replica = make(Replica)

    # When it is followed, Then there is no version
    assert replica.follow() == 0
    assert open_target(url).versions() == []
    with pytest.raises(SystemExit, match="it has none"):
        main(["inspect", url])

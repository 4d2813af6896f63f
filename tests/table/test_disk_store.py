"""Records on disk, against a Python dict."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

core = pytest.importorskip("support.core")

MIN, MAX = -(2**63), 2**63 - 1
EXTREMES = [0, 1, -1, MIN, MAX, MIN + 1, MAX - 1]
SMALL = 1 << 16  # memory_bytes of a store that writes files at once


def records_of(keys, num_bytes=24):
    """Bytes that differ from key to key."""
    bits = np.asarray(keys, np.int64).view(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
    return (bits >> (np.arange(num_bytes, dtype=np.uint64) % 57)).astype(np.uint8)


def filled_store(keys, **options):
    store = core.DiskStore(record_bytes=24, **options)
    store.put(keys, records_of(keys))
    return store


def read_all(snapshot, store, count=7):
    """[(key, record), ...] in the order in which they come."""
    rows = []
    while True:
        keys, records = snapshot.next(store, count)
        rows += [(int(key), bytes(record)) for key, record in zip(keys, records)]
        if len(keys) < count:
            return rows


def flip_bit(file, at):
    with file.open("r+b") as bytes_of_it:
        bytes_of_it.seek(at)
        byte = bytes_of_it.read(1)
        bytes_of_it.seek(at)
        bytes_of_it.write(bytes([byte[0] ^ 1]) if byte else b"")


def test_what_was_put_is_found():
    store = filled_store(EXTREMES)

    found, records = store.get([*EXTREMES, 2, EXTREMES[3]])

    assert found.tolist() == [True] * 7 + [False, True]
    np.testing.assert_array_equal(records[:7], records_of(EXTREMES))
    np.testing.assert_array_equal(records[8], records[3])
    assert store.num_keys == 7


def test_records_in_files_are_found():
    print("seed 1")
    keys = np.random.default_rng(1).permutation(50_000) - 25_000
    store = filled_store(keys, memory_bytes=SMALL)
    store.erase(keys[::2])
    end = time.monotonic() + 60
    while store.disk_bytes <= 100_000:  # RocksDB writes files beside the table
        assert time.monotonic() < end
        time.sleep(0.01)

    found, records = store.get(keys)

    assert store.num_keys == 25_000
    np.testing.assert_array_equal(found, np.arange(50_000) % 2 == 1)
    np.testing.assert_array_equal(records[found], records_of(keys[found]))


def test_a_snapshot_is_of_one_instant():
    store = filled_store(np.arange(100))
    snapshot = store.snapshot()

    store.erase(np.arange(50))
    store.put([-5], records_of([-5]))
    store.extend(b"tail")

    expected = [(key, bytes(records_of([key])[0])) for key in range(100)]
    assert read_all(snapshot, store) == expected
    assert snapshot.num_keys == 100
    assert store.num_keys == 51


def test_longer_records_give_the_former_ones_their_tail():
    store = filled_store([1])

    store.extend(b"\x07\x08")
    store.put([2], records_of([2], 26))

    records = store.get([1, 2])[1]
    assert bytes(records[0]) == bytes(records_of([1])[0]) + b"\x07\x08"
    np.testing.assert_array_equal(records[1], records_of([2], 26)[0])


def test_threads_with_keys_of_their_own():
    store = core.DiskStore(record_bytes=24, memory_bytes=SMALL)
    wrong = []

    def work(t):
        keys = np.arange(2000) * 4 + t
        for _ in range(3):
            store.put(keys, records_of(keys))
            found, records = store.get(keys)
            wrong.extend([] if found.all() and (records == records_of(keys)).all() else [t])
            store.erase(keys[:1999])
            store.erase(keys[1999:])

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert store.num_keys == 0


def test_a_temporary_folder_goes_with_its_store():
    store = filled_store([1])
    path = Path(store.path)
    assert path.is_dir()

    del store

    assert not path.exists()


def test_stores_of_one_folder_have_nothing_in_common(tmp_path):
    # Given a store in a folder
    first = filled_store([1], path=str(tmp_path), table="shop/user")
    # When others are made there, one of them for a table of the same name
    second = filled_store([2], path=str(tmp_path), table="shop/user")
    third = filled_store([3], path=str(tmp_path), table="item")
    # Then each has its own keys, in a folder that goes with it
    for store, found in ((first, [1]), (second, [2]), (third, [3])):
        assert np.flatnonzero(store.get([0, 1, 2, 3])[0]).tolist() == found
    assert len(list(tmp_path.iterdir())) == 3
    path = Path(first.path)
    assert path.parent == tmp_path and path.name.startswith("shop%2Fuser.rows-")
    del first, store
    assert not path.exists() and Path(second.path).is_dir()


def test_a_store_writes_nothing_as_it_is_closed():
    # Given stores with records in memory, whose folders are gone: RocksDB tries for seconds to
    # write these records
    stores = {}
    for number in range(3):
        stores[number] = filled_store(range(1000))
        shutil.rmtree(stores[number].path)
    # When they are closed
    seconds = []
    for number in range(3):
        begin = time.monotonic()
        del stores[number]
        seconds.append(time.monotonic() - begin)
    # Then it takes milliseconds
    assert min(seconds) < 0.5


# A process that makes stores, one where temporary files go, says where they are, and waits.
WAITING_STORES = """
import sys
import numpy as np
from support import core
stores = [core.DiskStore(record_bytes=8, path=path, table="user") for path in ("", sys.argv[1])]
for store in stores:
    store.put(np.arange(3), np.zeros([3, 8], np.uint8))
print(*(store.path for store in stores), sep="\\n", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed(tmp_path):
    # Given two processes with stores, of which one is killed, and a folder that is no store's
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", WAITING_STORES, tmp_path / "rows"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    killed, living = (subprocess.Popen(command, env=env, **pipes) for _ in range(2))
    paths = [[Path(p.stdout.readline().strip()) for _ in range(2)] for p in (killed, living)]
    others = tmp_path / "rows" / "mine"
    others.mkdir()
    killed.kill()
    killed.wait()
    assert all(path.is_dir() for of_process in paths for path in of_process)
    # When another process makes stores beside them
    subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    # Then the killed one's folders are gone, and the other's are as they were
    assert not any(path.exists() for path in paths[0])
    assert all((path / "CURRENT").is_file() for path in paths[1])
    assert others.is_dir()
    # And nothing is left when that ends
    living.communicate("")
    assert living.returncode == 0
    assert not any(path.exists() for path in paths[1])


FORKED = """
import os, sys
import numpy as np
from support import core
store = core.DiskStore(record_bytes=8, table="user", memory_bytes=1 << 16)
store.put(np.arange(9000), np.zeros([9000, 8], np.uint8))
snapshot = store.snapshot()
child = os.fork()
if child == 0:
    for use in (lambda: store.get([1]), lambda: store.erase([1]), lambda: snapshot.next(store, 1)):
        try:
            use()
            os._exit(1)
        except RuntimeError as error:
            assert "table 'user', disk tier" in str(error) and "forked" in str(error), error
    print("refused", flush=True)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert os.path.isdir(store.path)
store.put(np.arange(9000, 18_000), np.zeros([9000, 8], np.uint8))
assert store.get(np.arange(18_000))[0].all()
print("goes on")
"""


def test_a_forked_process_ends_and_leaves_the_store_alone():
    # When a process with a store forks, and the other one uses the store and exits
    done = subprocess.run(
        [sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    # Then that gets an error, and ends; the store is as before
    assert done.stdout.split("\n") == ["refused", "goes on", ""]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(RuntimeError, match="table 'user', disk tier in '.*file/.*storage_path"):
        core.DiskStore(record_bytes=24, path=str(tmp_path / "file"), table="user")


def test_flipped_bits_are_seen():
    keys = np.arange(50_000)
    store = filled_store(keys[::2], memory_bytes=SMALL, table="user")
    store.put(keys[1::2], records_of(keys[1::2]))
    while store.disk_bytes == 0:  # until a file has been written in the background
        time.sleep(0.01)
    for file in Path(store.path).glob("*.sst"):
        flip_bit(file, at=10_000)

    with pytest.raises(RuntimeError, match="table 'user', disk tier in .*orruption.*checkpoint"):
        store.get(keys)


def test_without_rocksdb_the_package_works_and_says_how_to_get_it():
    program = (
        "import numpy as np\n"
        "from support import core\n"
        "core.HostTable(dim=1).locate(np.arange(3), train=True)\n"
        "try: core.HostTable(dim=1, max_bytes=1000, disk=core.DiskTier(), name='user')\n"
        "except RuntimeError as error: print(error)\n"
    )
    env = {**os.environ, "GROUP_EMBEDDING_ROCKSDB": "/nowhere/librocksdb.so"}

    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("table 'user': its disk tier needs RocksDB: ")
    assert "/nowhere/librocksdb.so" in done.stdout
    assert "`pip install aimrocks`" in done.stdout
    assert len(done.stdout.splitlines()) == 1


KEYS = st.lists(st.sampled_from([*range(12), *EXTREMES]), min_size=1, max_size=12, unique=True)


class StoreIsADict(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.store = core.DiskStore(record_bytes=8, memory_bytes=SMALL)
        self.dict = {}  # key -> record

    @rule(keys=KEYS, value=st.integers(0, 255))
    def put(self, keys, value):
        self.erase(keys)
        record = bytes([value]) * 8
        self.store.put(keys, np.tile(np.frombuffer(record, np.uint8), (len(keys), 1)))
        self.dict.update(dict.fromkeys(keys, record))

    @rule(keys=KEYS)
    def erase(self, keys):
        self.store.erase([key for key in keys if self.dict.pop(key, None)])

    @rule()
    def clear(self):
        self.store.clear()
        self.dict.clear()

    @invariant()
    def equals_the_dict(self):
        asked = [*range(12), *EXTREMES]
        found, records = self.store.get(asked)
        assert self.store.num_keys == len(self.dict)
        there = {key: bytes(r) for key, is_there, r in zip(asked, found, records) if is_there}
        assert there == self.dict
        in_order = sorted(self.dict.items(), key=lambda item: item[0] % 2**64)
        assert read_all(self.store.snapshot(), self.store) == in_order


TestStoreIsADict = StoreIsADict.TestCase
TestStoreIsADict.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

"""Models served by a GPU: its answers are those of the CPU, in every version, whichever rows have
copies in its memory."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from support.cases.shop_models import Shop, Versions, change, export, request, version_folder

import group_embedding as ge
from group_embedding.serving import InferenceSession, Publisher

gpu = pytest.mark.gpu
# Rows are sums of a few; a score is the sum of 198 numbers of both signs.
TOLERANCE = {"rows": 1e-6, "score": 2e-5}


class Wide(tf.Module):
    """Four keyed tables of several dims and sizes, one of them empty, and one by row number, each
    looked up with weights by two features."""

    SIZES = {"few": (10, 4), "many": (20_000, 64), "odd": (3_000, 3), "none": (0, 16)}
    ROWS = 500

    def __init__(self):
        draw = np.random.default_rng(3)
        self.tables = []
        for name, (count, dim) in self.SIZES.items():
            table = ge.get_embedding_variable(f"devices_{name}", dim)
            table.insert(np.arange(count), draw.normal(size=[count, dim]).astype(np.float32))
            self.tables.append(table)
        self.pages = tf.Variable(draw.normal(size=[self.ROWS, 24]).astype(np.float32))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 5], tf.int64, name="keys"),
            tf.TensorSpec([None, 5], tf.float32, name="weights"),
            tf.TensorSpec([None, 5], tf.int64, name="pages"),
        ]
    )
    def serve(self, keys, weights, pages):
        tables = [*self.tables, *self.tables, self.pages]
        ids = [
            *[tf.RaggedTensor.from_tensor(keys)] * 4,
            *[tf.RaggedTensor.from_tensor(keys // 3)] * 4,
        ]
        ids.append(tf.RaggedTensor.from_tensor(pages))
        rows = ge.group_embedding_lookup_sparse(
            tables,
            ids,
            ["sum", "mean", "sqrtn"] * 3,
            sp_weights=[tf.RaggedTensor.from_tensor(weights)] * 9,
            concat=True,
        )
        return {"rows": rows, "score": tf.reduce_sum(tf.tanh(rows), 1)}

    def draw(self, seed, count=300):
        """A request: keys by a skewed law, trained ones and others."""
        draw = np.random.default_rng(seed)
        return {
            "keys": (draw.zipf(1.2, size=[count, 5]) % 30_000 - 2).astype(np.int64),
            "weights": draw.uniform(0.5, 2, size=[count, 5]).astype(np.float32),
            "pages": draw.integers(0, self.ROWS, size=[count, 5]),
        }


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    model = Wide()
    return model, export(model, tmp_path_factory.mktemp("wide") / "1")


def copies(session):
    """Bytes on the GPU, tables that are there as a whole, and counts of the others' copies."""
    total = dict.fromkeys(["bytes", "resident", "rows", "found", "brought", "kept"], 0)
    for table in session.info()["tables"]:
        for name, count in table["copies"].items():
            total[name] += count
    return total


def assert_same(found, expected):
    for name, value in expected.items():
        near = {"rtol": 1e-5, "atol": TOLERANCE[name]}
        np.testing.assert_allclose(found[name], value, **near, err_msg=name)


@gpu
@pytest.mark.parametrize("hbm", [None, "12MB", "1MB", "20kB"])
@pytest.mark.parametrize("quantize", [None, "int8", "fp8", "bfloat16"])
def test_a_gpu_answers_as_the_cpu(wide, quantize, hbm):
    # Given a model on the CPU and on a GPU whose memory has all rows, those of small tables, some,
    # or hardly any
    model, folder = wide
    tiers = hbm and f"hbm={hbm}"
    with (
        InferenceSession(folder, quantize=quantize) as host,
        InferenceSession(folder, quantize=quantize, devices="GPU:0", tiers=tiers) as device,
    ):
        # When both are asked, again and again, with few samples and many
        for seed in range(20):
            asked = model.draw(seed, count=3 if seed % 4 == 0 else 300)
            # Then they answer the same
            assert_same(device.predict(asked), host.predict(asked))
        # And rows came to the GPU's memory, and were read there
        counted = copies(device)
        num_tables = len(Wide.SIZES) + 1
        all_fit = hbm is None or (hbm == "12MB" and quantize in ("int8", "fp8"))
        resident = num_tables if all_fit else num_tables - 1 if hbm == "12MB" else 0
        assert counted["resident"] == resident
        if resident < num_tables:
            assert counted["kept"] > 0 and counted["found"] > counted["brought"] / 10
            assert counted["bytes"] < 2 * {"12MB": 12e6, "1MB": 1e6, "20kB": 20e3}[hbm]


@pytest.fixture(params=[None, "hbm=2kB", "rocksdb", "redis"])
def tiers(request, tmp_path):
    """The option `tiers` of a session on a GPU: what is below its memory."""
    if request.param not in ("rocksdb", "redis"):
        return request.param
    where = (
        tmp_path / "rows" if request.param == "rocksdb" else request.getfixturevalue("redis_url")
    )
    return f"hbm=2kB,memory=400,{request.param}={where}"


@gpu
def test_every_version_is_the_cpus(tmp_path, tiers):
    # Given a model that is published, on the CPU and on a GPU
    model = Shop()
    with Publisher(model, tmp_path / "target", signatures=model.serve) as publisher:
        publisher.publish(step=1)
        with (
            InferenceSession(tmp_path / "target/1") as host,
            InferenceSession(tmp_path / "target/1", devices="GPU:0", tiers=tiers) as device,
        ):
            for version in range(2, 9):
                # When rows, new keys and erased keys are published
                change(model, version)
                publisher.publish(step=version)
                for session in (host, device):
                    session.apply(version_folder(tmp_path / "target", version))
                # Then both answer the same, in this version and in the one before
                for _ in range(2):
                    for seed in range(3):
                        asked = request(40, seed)
                        assert_same(device.predict(asked), host.predict(asked))
                    if version % 2:
                        break
                    assert host.rollback() == device.rollback() == version - 1
                    for session in (host, device):  # and forward again
                        session.apply(version_folder(tmp_path / "target", version))


@gpu
def test_a_table_that_outgrows_its_memory_on_the_gpu(tmp_path):
    # Given a table of four rows, which the GPU has as a whole, with a page of its memory for it
    model, draw = Shop(), np.random.default_rng(5)
    with Publisher(model, tmp_path / "target", signatures=model.serve) as publisher:
        publisher.publish(step=1)
        with (
            InferenceSession(tmp_path / "target/1") as host,
            InferenceSession(tmp_path / "target/1", devices="GPU:0") as device,
        ):
            page = copies(device)["bytes"]
            for version in (2, 3):
                # When versions bring far more rows than that has space for
                keys = np.arange(150_000) + version * 10**6
                model.user.insert(keys, draw.normal(size=[150_000, 8]).astype(np.float32))
                publisher.publish(step=version)
                for session in (host, device):
                    session.apply(version_folder(tmp_path / "target", version))
                # Then both answer the same, for old rows and for new ones
                for users in (keys, [2 * 10**6, 7]):
                    asked = request(3000, seed=version) | {"user": draw.choice(users, size=3000)}
                    assert_same(device.predict(asked), host.predict(asked))
            # And the rows are still read in memory of their own
            counted = copies(device)
            assert counted["bytes"] > page + 150_000 * 32 and counted["resident"] == 3


@gpu
def test_a_request_sees_one_version(tmp_path):
    # Given a model of which every row is the version, on a GPU with copies of few rows
    model = Versions()
    keys, torn, answered = np.tile(Versions.KEYS, 3), [], []
    with Publisher(model, tmp_path / "target", signatures=model.serve) as publisher:
        publisher.publish()
        with InferenceSession(tmp_path / "target/1", devices="GPU", tiers="hbm=2kB") as session:
            done = threading.Event()

            def ask():
                while not done.is_set():
                    found = session.predict({"key": keys})
                    answered.append(found.version)
                    if not (found["rows"] == found["dense"][0]).all():
                        torn.append(found)

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            # When it is asked from four threads while versions come
            for version in range(2, 40):
                model.set(version)
                publisher.publish()
                session.apply(version_folder(tmp_path / "target", version))
            done.set()
            for thread in threads:
                thread.join()
    # Then each answer is of one version
    assert not torn and len(set(answered)) > 5


@gpu
def test_bad_ids_are_named(wide):
    model, folder = wide
    with InferenceSession(folder, devices="GPU:0") as session:
        bad = model.draw(1)
        bad["pages"][7, 2] = Wide.ROWS
        with pytest.raises(ValueError, match=f"id {Wide.ROWS} of sample 7 is outside the table"):
            session.predict(bad)
        assert session.predict(model.draw(1))["rows"].shape == (300, 2 * 87 + 24)


def test_the_cpu_by_name(wide):
    model, folder = wide
    asked = model.draw(5)
    with InferenceSession(folder) as first, InferenceSession(folder, devices=["CPU"]) as second:
        for name, value in first.predict(asked).items():
            np.testing.assert_array_equal(second.predict(asked)[name], value)
        assert "copies" not in second.info()["tables"][0]


@pytest.mark.parametrize("devices", ["TPU", ["GPU:0", "GPU:1"], [], "GPU:x"])
def test_other_devices_are_refused(wide, devices):
    with pytest.raises(ValueError, match="option 'devices': expected one device, as CPU, GPU"):
        InferenceSession(wide[1], devices=devices)


def test_what_a_gpu_needs(wide):
    with pytest.raises(ValueError, match="hbm=SIZE expects the option 'devices' to be a GPU"):
        InferenceSession(wide[1], tiers="hbm=1GB")
    with pytest.raises(ValueError, match="option 'devices': expected"):
        InferenceSession(wide[1], devices="GPU:99")

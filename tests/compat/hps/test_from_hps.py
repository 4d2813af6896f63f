"""HPS's configuration and models: what each key is here, tables and networks that are served."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.compat.hps import keys, read_hps
from group_embedding.serving import __main__ as command

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "hps.md"


TLS = {
    "type": "redis_cluster",
    "address": "one:1",
    "password": "secret",
    "enable_tls": True,
    "tls_ca_certificate": "ca.pem",
    "tls_client_certificate": "me.pem",
    "tls_client_key": "key.pem",
}


def sparse_model(folder, keys, values, dtype=np.int64):
    folder.mkdir(parents=True)
    np.asarray(keys, dtype).tofile(folder / "key")
    np.asarray(values, np.float32).tofile(folder / "emb_vector")
    return str(folder)


def model(folder, name="wdl", **changed):
    """A model of two tables, with all keys of the documented sample."""
    users = sparse_model(folder / name / "users", [7, 2**40, -3], [[1], [2], [3]])
    ads = sparse_model(folder / name / "ads", [2, 1], [[1, 2, 3], [4, 5, 6]])
    return {
        "model": name,
        "sparse_files": [users, ads],
        "num_of_worker_buffer_in_pool": 4,
        "num_of_refresher_buffer_in_pool": 1,
        "deployed_device_list": [0],
        "max_batch_size": 64,
        "default_value_for_each_table": [0.5, 0],
        "maxnum_des_feature_per_sample": 26,
        "maxnum_catfeature_query_per_table_per_sample": [2, 26],
        "embedding_vecsize_per_table": [1, 3],
        "embedding_table_names": ["users", "ad-s"],
        "refresh_delay": 0,
        "refresh_interval": 0,
        "hit_rate_threshold": 0.9,
        "gpucacheper": 0.1,
        "embedding_cache_type": "dynamic",
        "gpucache": True,
        "cache_refresh_percentage_per_iteration": 0.2,
        "label_dim": 1,
        "slot_num": 10,
        "use_context_stream": False,
        **changed,
    }


def config(folder, *models, **changed):
    """The file of a deployment with RocksDB and Kafka."""
    values = {
        "supportlonglong": True,
        "fuse_embedding_table": False,
        "models": list(models),
        "volatile_db": {
            "type": "parallel_hash_map",
            "num_partitions": 2,
            "allocation_rate": 268435456,
            "overflow_margin": 1000000,
            "overflow_policy": "evict_random",
            "initial_cache_rate": 0.5,
            "cache_missed_embeddings": False,
            "update_filters": ["wdl"],
        },
        "persistent_db": {"type": "rocks_db", "path": f"{folder}/rows", "num_threads": 16},
        "update_source": {
            "type": "kafka_message_queue",
            "brokers": "one:9092;two:9092",
            "poll_timeout_ms": 500,
        },
        **changed,
    }
    values = {key: value for key, value in values.items() if value is not None}
    path = folder / "ps.json"
    path.write_text(json.dumps(values))
    return path


def test_tables_and_their_server(tmp_path, capsys):
    # Given a deployment of two models, of which the filters let one be updated
    filters = {"type": "hash_map", "update_filters": [r"^hps_et\.wdl\."], "initial_cache_rate": 0.5}
    filters |= {"password": "secret"}
    rows = {"type": "rocks_db", "path": str(tmp_path / "rows"), "update_filters": ["^none$"]}
    path = config(
        *(tmp_path, model(tmp_path), model(tmp_path, "other")),
        volatile_db=filters,
        persistent_db=rows,
    )

    # When it is moved
    assert command.main(["from-hps", str(path), str(tmp_path / "out")]) == 0

    # Then each key of the file is said, and the command has models, source and tiers
    *said, server = capsys.readouterr().out.strip().splitlines()
    given = json.loads(path.read_text())
    for owner in ("volatile_db", "persistent_db", "update_source"):
        assert all(f"{owner}.{key} = " in "\n".join(said) for key in given[owner])
    assert any(line.startswith("persistent_db.path") and ": is the folder" in line for line in said)
    assert not any(": nothing here: is" in line or "secret" in line for line in said)
    for number in (0, 1):
        for key in given["models"][number]:
            assert any(line.startswith(f"models[{number}].{key} = ") for line in said), key
    out = tmp_path / "out"
    assert server == (
        f"python -m group_embedding.serving --model wdl={out}/wdl "
        f"--source kafka://one:9092,two:9092/wdl --model other={out}/other "
        f"--tiers memory=1048576,rocksdb={tmp_path}/rows-ge,insert=background"
    )
    # And a key reads its row, or the default of its table, in keys of any shape
    for name in ("wdl", "other"):
        with ge.serving.InferenceSession(out / name / "1") as session:
            found = session.predict({"users": [[7, 8], [-3, 2**40]], "ad-s": [1]})
            assert found["users"].tolist() == [[[1], [0.5]], [[3], [2]]]
            assert found["ad-s"].tolist() == [[4, 5, 6]]
            assert session.version == 1


def test_what_is_moved_can_be_served_from_disk(tmp_path, capsys):
    pytest.importorskip("aimrocks")
    # Given a moved model, and the tiers of its command
    path = config(tmp_path, model(tmp_path, fp8_quant=True), update_source=None)
    command.main(["from-hps", str(path), str(tmp_path / "out")])
    server = capsys.readouterr().out.splitlines()[-1].split()
    assert "--source" not in server and server[-2:] == ["--quantize", "fp8"]
    tiers = server[server.index("--tiers") + 1]

    # When it is opened with them, then rows are those of the files
    with ge.serving.InferenceSession(tmp_path / "out" / "wdl" / "1", tiers=tiers) as session:
        assert session.predict({"users": [7], "ad-s": [2]})["ad-s"].tolist() == [[1, 2, 3]]
        assert all("cached" in table for table in session.info()["tables"])


@pytest.mark.parametrize(
    "volatile, below",
    [
        ({"type": "redis", "address": "one:7000,two:7000"}, "redis=one:7000,two:7000"),
        ({"type": "redis", "user_name": "me"}, "redis=redis://me:@127.0.0.1:7000"),
        (TLS, "redis=rediss://one:1?ssl_ca_certs=ca.pem&ssl_certfile=me.pem&ssl_keyfile=key.pem"),
    ],
)
def test_redis_is_below_memory(volatile, below, tmp_path):
    path = config(tmp_path, model(tmp_path), volatile_db=volatile, persistent_db=None)
    found = read_hps(path)
    assert (found.below, found.memory_share, found.memory_rows) == (below, 0.1, None)


@pytest.mark.parametrize(
    ("thresholds", "insert"),
    [((1.0, 1.5), "at_once"), ((1.0, 0.9), "background"), ((0.0, 0.0), "background")],
)
def test_the_hit_rate_says_when_rows_come_into_memory(thresholds, insert, tmp_path):
    models = [
        model(tmp_path, f"model-{number}", hit_rate_threshold=threshold)
        for number, threshold in enumerate(thresholds)
    ]
    assert read_hps(config(tmp_path, *models)).insert == insert
    # Without a GPU cache HPS has none that it could insert into
    for one in models:
        one["gpucache"] = False
    assert read_hps(config(tmp_path, *models)).insert == "at_once"


def network_files(folder, is_fixed, **hparam):
    sparse = {"top": "data", "slot_num": 2, "nnz_per_slot": 2, "is_fixed_length": is_fixed}
    layers = [
        {
            "type": "Data",
            "label": {"top": "click", "label_dim": 1},
            "dense": {"top": "dense", "dense_dim": 1},
            "sparse": [sparse],
        },
        {
            "type": "DistributedSlotSparseEmbeddingHash",
            "bottom": "data",
            "top": "vectors",
            "sparse_embedding_hparam": {"embedding_vec_size": 1, "combiner": "sum", **hparam},
        },
        {"type": "Reshape", "bottom": "vectors", "top": "flat", "leading_dim": 2},
        {"type": "Concat", "bottom": ["flat", "dense"], "top": "all"},
        {"type": "InnerProduct", "bottom": "all", "top": "fc", "fc_param": {"num_output": 1}},
        {"type": "BinaryCrossEntropyLoss", "bottom": ["fc", "click"], "top": "loss"},
    ]
    (folder / "net.json").write_text(json.dumps({"layers": layers}))
    np.array([1, 10, 100, 0.5], np.float32).tofile(folder / "dense")
    return {"network_file": str(folder / "net.json"), "dense_file": str(folder / "dense")}


@pytest.mark.parametrize("kind", ["fixed", "ragged", "slot sizes"])
def test_a_network_with_its_tables(kind, tmp_path):
    # Given a network of two slots, whose sparse model lacks a key
    sizes = {"slot_size_array": [3, 2]} if kind == "slot sizes" else {}
    stored = [0, 1, 4] if sizes else [7, 9, 2**40]
    network = network_files(tmp_path, kind != "ragged", **sizes)
    sparse = sparse_model(tmp_path / "sparse", stored, [[0.25], [0.5], [0.75]])
    one = {
        "model": "dcn",
        "sparse_files": [sparse],
        "embedding_vecsize_per_table": [1],
        "default_value_for_each_table": [0.125],
        **network,
    }
    path = config(tmp_path, one, update_source=None, persistent_db=None)

    # When it is moved and asked: [two keys, one that has no row]
    assert command.main(["from-hps", str(path), str(tmp_path / "out")]) == 0
    first, second, missing = (0, 1, 0) if sizes else (7, 2**40, 8)
    inputs = {"dense": np.ones([2, 1], np.float32)}
    if kind == "ragged":
        inputs |= {"data_0": [first, 9, missing], "data_0_lengths": [2, 1]}
        inputs |= {"data_1": [second], "data_1_lengths": [1, 0]}
        logits = [0.25 + 0.5 + 7.5 + 100.5, 0.125 + 100.5]
    elif kind == "fixed":
        inputs |= {"data_0": [[first, 9], [9, 9]], "data_1": [[second], [missing]]}
        logits = [0.75 + 7.5 + 100.5, 1 + 1.25 + 100.5]
    else:
        inputs |= {"data_0": [[first, 1], [1, 1]], "data_1": [[second], [missing]]}
        logits = [0.75 + 7.5 + 100.5, 1 + 1.25 + 100.5]

    # Then it answers the probabilities of the files' weights
    with ge.serving.InferenceSession(tmp_path / "out" / "dcn" / "1") as session:
        found = session.predict(inputs)["click"]
    np.testing.assert_allclose(found[:, 0], 1 / (1 + np.exp(-np.array(logits))), rtol=1e-6)


@pytest.mark.parametrize("dtype", by_day([np.uint32, np.int64], [np.uint32]))
def test_keys_of_32_bits(dtype, tmp_path, capsys):
    # Given a file of unsigned keys, in files of 4 and of 8 bytes a key
    sparse = sparse_model(tmp_path / "sparse", [7, 2**32 - 1], [[1], [2]], dtype)
    one = {"model": "m", "sparse_files": [sparse], "embedding_vecsize_per_table": [1]}
    path = config(tmp_path, one, supportlonglong=False)

    # When it is moved, then keys are not taken for negative ones
    command.main(["from-hps", str(path), str(tmp_path / "out")])
    with ge.serving.InferenceSession(tmp_path / "out" / "m" / "1") as session:
        found = session.predict({"sparse_embedding0": [7, 2**32 - 1, -1]})
    assert found["sparse_embedding0"].tolist() == [[1], [2], [0]]
    # And the converter of tables reads both
    arguments = ["hugectr", sparse, "--key-dtype", np.dtype(dtype).name]
    subprocess.run([sys.executable, "-m", "group_embedding.convert", *arguments], check=True)


@pytest.mark.parametrize(
    "place, changed, message",
    [
        ("file", {"volatile": {}}, "expected the keys .* got 'volatile'; did you mean"),
        ("file", {"supportlonglong": None}, "expected the key 'supportlonglong'"),
        ("file", {"models": []}, "expected models, got none"),
        (
            "file",
            {"volatile_db": {"type": "redis"}, "persistent_db": {"type": "rocks"}},
            "persistent_db.type: expected disabled",
        ),
        (
            "file",
            {"volatile_db": {**TLS, "tls_server_name_identification": "other"}},
            "the name in the certificate is that in the address",
        ),
        ("file", {"volatile_db": {"type": "heap"}}, "expected one of disabled, hash_map"),
        ("file", {"persistent_db": {"type": "rocks_db", "read_only": True}}, "one server has"),
        ("file", {"update_source": {"type": "kafka", "brokers": "a, b"}}, "HOST:PORT"),
        ("file", {"volatile_db": {"type": "hash", "update_filters": ["users"]}}, "all tables of"),
        ("model", {"gpucachper": 0.1}, "'gpucachper'; did you mean 'gpucacheper'"),
        ("model", {"gpucache": 1}, "expected bool for 'gpucache', got 1"),
        ("model", {"embedding_vecsize_per_table": [1]}, "expected 2 values"),
        ("model", {"embedding_vecsize_per_table": [1, 2]}, "expected .* of dim 2|of one length"),
        ("model", {"embedding_table_names": ["a/b", "c"]}, "1 to 120 of a-z"),
        ("model", {"dense_file": "dense"}, "both of network_file and dense_file"),
        ("model", {"sparse_files": ["/nowhere", "/none"]}, "/nowhere"),
    ],
)
def test_what_cannot_be_moved_is_named(place, changed, message, tmp_path):
    # Given a file with one thing wrong, when it is moved, then the message names the thing
    one = model(tmp_path, **(changed if place == "model" else {}))
    of_file = {"persistent_db": {"type": "disabled"}, "models": [one]}
    path = config(tmp_path, **of_file | (changed if place == "file" else {}))
    with pytest.raises(SystemExit, match=f"(?s)group_embedding: .*{message}"):
        command.main(["from-hps", str(path), str(tmp_path / "out")])
    assert not (tmp_path / "out" / "wdl").exists()


def test_one_model_of_several_is_read(tmp_path):
    path = config(tmp_path, model(tmp_path), model(tmp_path, "other"))
    assert [one.name for one in read_hps(path, ["other"]).models] == ["other"]
    with pytest.raises(ValueError, match="expected a model 'third', got wdl, other"):
        read_hps(path, ["third"])


def test_the_reference_has_every_key():
    text = REFERENCE.read_text()
    for table in (keys.FILE, keys.MODEL, keys.VOLATILE, keys.PERSISTENT, keys.UPDATE_SOURCE):
        for key in table:
            assert f"`{key}`" in text, key

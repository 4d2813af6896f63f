"""The keys of HPS's configuration file, and what each is here.

The keys are those that the last HPS reads. `IS` begins the sentence of a key that has an
equivalent; the values of others change nothing here, and their sentence says why.
"""

from __future__ import annotations

IS = "is "

FILE = {
    "supportlonglong": (bool, "is how keys are read: false means that they have 32 bits"),
    "fuse_embedding_table": (bool, "lookups of all tables are one op"),
    "models": (list, "is a SavedModel for each, and a --model of the server"),
    "volatile_db": (dict, "is the memory of --tiers, or Redis below it"),
    "persistent_db": (dict, "is the RocksDB folder of --tiers"),
    "update_source": (dict, "is a --source for each model"),
}

_BUFFERS = "buffers are made as requests need them"
_ONE_CACHE = "rows are in host memory, or in --tiers; a trained key never reads another row"
_DENSE = "the dense part runs in TensorFlow"

MODEL = {
    "model": (str, "is the name in --model"),
    "sparse_files": (list, "is read into the SavedModel's tables"),
    "dense_file": (str, "is read into the SavedModel's dense layers"),
    "network_file": (str, "is the SavedModel's network"),
    "embedding_table_names": (
        list,
        "is the tables' names, and the inputs of a SavedModel of tables",
    ),
    "embedding_vecsize_per_table": (list, "is the dims that the files must have"),
    "default_value_for_each_table": (list, "is what a key without a row reads"),
    "fp8_quant": (bool, "is --quantize fp8"),
    "fuse_embedding_table": (bool, "lookups of all tables are one op"),
    "num_of_worker_buffer_in_pool": (int, f"{_BUFFERS}; --threads is how many run at a time"),
    "num_of_refresher_buffer_in_pool": (int, "a version is applied by one thread"),
    "deployed_device_list": (list, "rows are in host memory, which all threads read"),
    "max_batch_size": (int, f"{_BUFFERS}; --max-message-bytes bounds a request"),
    "maxnum_des_feature_per_sample": (int, _BUFFERS),
    "maxnum_catfeature_query_per_table_per_sample": (list, _BUFFERS),
    "label_dim": (int, _BUFFERS),
    "slot_num": (int, _BUFFERS),
    "gpucache": (bool, _ONE_CACHE),
    "gpucacheper": (float, "is the share of rows in memory, above Redis; else it changes nothing"),
    "hit_rate_threshold": (
        float,
        "is insert= of --tiers: background below 1, at_once from 1 on; a trained key never reads "
        "the default row, at any hit rate",
    ),
    "embedding_cache_type": (str, _ONE_CACHE),
    "use_static_table": (bool, _ONE_CACHE),
    "use_hctr_cache_implementation": (bool, _ONE_CACHE),
    "init_ec": (bool, _ONE_CACHE),
    "enable_pagelock": (bool, _ONE_CACHE),
    "thread_pool_size": (int, "keys found on disk are put into memory by the request that asks"),
    "cache_refresh_percentage_per_iteration": (float, "a version is applied as a whole, at once"),
    "refresh_delay": (float, "versions are applied when they come"),
    "refresh_interval": (float, "versions are applied when they come; --poll-seconds is the look"),
    "use_context_stream": (bool, _DENSE),
}

_REDIS_ALONE = "a read is one command for each node and table"
_ONE_PROCESS = "one process has all threads, and needs no shared memory"
_ASKED_ALONE = "rows come into memory when they are asked for, and the longest unused leave"

VOLATILE = {
    "type": (str, "is rows in memory; redis_cluster is redis= of --tiers"),
    "num_partitions": (int, "is how many rows of a table are in memory, times overflow_margin"),
    "overflow_margin": (int, "is how many rows of a table are in memory, times num_partitions"),
    "initial_cache_rate": (float, "is how much of the rows is in memory; " + _ASKED_ALONE),
    "update_filters": (list, "is which models get a --source"),
    "overflow_policy": (str, _ASKED_ALONE),
    "overflow_resolution_target": (float, _ASKED_ALONE),
    "cache_missed_embeddings": (bool, _ASKED_ALONE),
    "initialize_after_startup": (bool, "rows that are on disk are not written again"),
    "allocation_rate": (int, "memory is taken as it is needed, up to that of --tiers"),
    "max_batch_size": (int, "the rows of a request are read at once"),
    "shared_memory_size": (int, _ONE_PROCESS),
    "shared_memory_name": (str, _ONE_PROCESS),
    "shared_memory_auto_remove": (bool, _ONE_PROCESS),
    "address": (str, "is redis= of --tiers"),
    "user_name": (str, "is the user in the URL of redis="),
    "password": (str, "is GROUP_EMBEDDING_REDIS_PASSWORD in the server's environment"),
    "num_node_connections": (int, _REDIS_ALONE),
    "enable_tls": (bool, "is rediss:// of redis="),
    "tls_ca_certificate": (str, "is ssl_ca_certs of redis="),
    "tls_client_certificate": (str, "is ssl_certfile of redis="),
    "tls_client_key": (str, "is ssl_keyfile of redis="),
    "tls_server_name_identification": (
        str,
        "is refused with enable_tls: the name is that in the address",
    ),
}

PERSISTENT = {
    "type": (str, "is rocksdb= of --tiers"),
    "path": (str, "is the folder of --tiers, with '-ge' behind it: the files of HPS stay"),
    "read_only": (bool, "is refused if it is true: one server has the folder"),
    "update_filters": (list, "is which models get a --source"),
    "num_threads": (int, "the threads of requests read"),
    "max_batch_size": (int, "the rows of a request are read at once"),
    "initialize_after_startup": (bool, "rows that are on disk are not written again"),
}

_WHOLE = "a version is read whole, verified, and applied at once"

UPDATE_SOURCE = {
    "type": (str, "is kafka:// of --source"),
    "brokers": (str, "is the brokers of --source; the topic has the model's name"),
    "metadata_refresh_interval_ms": (
        int,
        "librdkafka's own; a URL takes it as ?topic.metadata.refresh.interval.ms=",
    ),
    "receive_buffer_size": (int, _WHOLE),
    "max_batch_size": (int, _WHOLE),
    "max_commit_interval": (int, _WHOLE),
    "poll_timeout_ms": (int, "--poll-seconds is how often a server looks"),
    "failure_backoff_ms": (int, "a version that is not applied is tried again at the next look"),
}

# The words that HPS takes for a type; the first one is the name of the enumeration.
DISABLED = ("disabled", "disable", "none")
IN_MEMORY = (
    *("hash_map", "hashmap", "hash", "map"),
    *("parallel_hash_map", "parallel_hashmap", "parallel_hash", "parallel_map"),
    *("multi_process_hash_map", "multi_process_hashmap", "multi_process_hash"),
    "multi_process_map",
)
REDIS = ("redis_cluster", "redis")
ROCKSDB = ("rocks_db", "rocksdb", "rocks")
NO_SOURCE = ("null", "none")
KAFKA = ("kafka_message_queue", "kafka_mq", "kafka")

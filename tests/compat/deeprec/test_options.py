"""Options: DeepRec's names and defaults, checked when they are made."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge


def test_defaults():
    option = ge.EmbeddingVariableOption()
    assert (option.ht_type, option.ht_partition_num) == ("", 1000)
    assert (option.evict_option, option.ckpt, option.filter_option) == (None, None, None)
    assert option.storage_option == ge.StorageOption(
        storage_type=None, storage_path=None, cache_strategy=ge.CacheStrategy.LFU
    )
    assert option.init_option == ge.InitializerOption(
        initializer=None, default_value_dim=4096, default_value_no_permission=0.0
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ge.InitializerOption(default_value_dim=0), "default_value_dim.*at least 1, got 0"),
        (lambda: ge.InitializerOption(default_value_no_permission="x"), "finite number, got 'x'"),
        (lambda: ge.CounterFilter(-1), "filter_freq.*at least 0, got -1"),
        (lambda: ge.CounterFilter(1.5), "filter_freq.*at least 0, got 1.5"),
        (lambda: ge.CBFFilter(3), "max_element_size.*at least 1, got 0"),
        (lambda: ge.CBFFilter(3, 10), "false_positive_probability.*above 0 and below 1, got -1.0"),
        (lambda: ge.CBFFilter(3, 10, 0.1, tf.bool), "counter_type.*uint8, uint16.*got tf.bool"),
        (lambda: ge.CBFFilter(3, 10, 0.1, "byte"), "counter_type.*uint8, uint16.*got 'byte'"),
        (lambda: ge.CBFFilter(300, 10, 0.1, tf.uint8), "counter_type that holds filter_freq=300"),
        (lambda: ge.ProbabilityFilter(0), "probability.*above 0, got 0"),
        (lambda: ge.ProbabilityFilter(1.5), "probability from 1e-6 to 1, got 1.5"),
        (lambda: ge.TimeEvict(0), "minutes_to_live.*at least 1, got 0"),
        (lambda: ge.GlobalStepEvict(0), "steps_to_live.*at least 1, got 0"),
        (lambda: ge.L2WeightEvict(-2.0), "l2_weight_threshold.*above 0, got -2.0"),
        (lambda: ge.StorageOption("DRAM"), "storage_type to be None or StorageType, got 'DRAM'"),
        (lambda: ge.StorageOption(storage_size=[]), "positive numbers of bytes, got \\[\\]"),
        (lambda: ge.StorageOption(cache_strategy="LFU"), "cache_strategy to be CacheStrategy"),
        (lambda: ge.EmbeddingVariableOption(ht_type="dense"), "ht_type has no meaning"),
        (lambda: ge.EmbeddingVariableOption(filter_option=3), "None or CounterFilter or CBFFilter"),
        (lambda: ge.EmbeddingVariableOption(storage_option=None), "to be StorageOption, got None"),
    ],
)
def test_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("counter_type", ["uint8", "int8", np.uint8, np.dtype("int8"), tf.uint8])
def test_counters_by_the_name_of_their_type(counter_type):
    option = ge.EmbeddingVariableOption(filter_option=ge.CBFFilter(3, 100, 0.01, counter_type))
    assert option.to_keyed_options().counter_bits == 8


def test_a_filter_that_asks_for_no_training_is_no_filter():
    option = ge.EmbeddingVariableOption(filter_option=ge.CBFFilter(0, 100, 0.01, tf.uint8))
    assert option.to_keyed_options() == ge.EmbeddingVariableOption().to_keyed_options()


def test_no_eviction_is_an_option():
    assert ge.GlobalStepEvict().steps_to_live is None
    assert ge.TimeEvict().minutes_to_live is None
    assert ge.L2WeightEvict().l2_weight_threshold == -1.0

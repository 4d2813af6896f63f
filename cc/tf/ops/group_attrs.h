// The attributes of ops that look a group up, or take the way back from one: what
// tf/support/group_attrs.h reads of each. In a registration: `.TABLES_ATTRS.GROUP_ATTRS`.
#pragma once

#define TABLES_ATTRS                                                \
  Attr("table_types: list({resource, float, half, bfloat16}) >= 1") \
      .Attr("dtype: {float, half, bfloat16}")                       \
      .Attr("keyed_types: list({resource}) >= 0 = []")              \
      .Attr("keyed: list(int) = []")

// The signed combiners count ids of any weight: see Combiner in core/group.h.
#define COMBINERS_ATTR \
  Attr("combiners: list({'sum', 'mean', 'sqrtn', 'signed_mean', 'signed_sqrtn'})")

#define GROUP_ATTRS                           \
  Attr("table_of_feature: list(int)")         \
      .COMBINERS_ATTR.Attr("dims: list(int)") \
      .Attr("max_norms: list(float)")         \
      .Attr("table_names: list(string)")      \
      .Attr("feature_names: list(string)")    \
      .Attr("concat: bool = false")           \
      .Attr("weighted: bool = false")         \
      .Attr("prune_negative: bool = true")    \
      .Attr("invalid_ids: {'raise', 'ignore'} = 'raise'")

// Lookups over ranks with a GPU each have these: tf/support/nccl_ranks.h reads the last five.
#define EXCHANGE_ATTRS                             \
  Attr("num_rows: list(int)")                      \
      .Attr("gradient_scale: float")               \
      .Attr("description: string")                 \
      .Attr("comm_dtype: {float, half, bfloat16}") \
      .Attr("nccl_id: string")                     \
      .Attr("rank: int >= 0")                      \
      .Attr("num_ranks: int >= 1")                 \
      .Attr("timeout_seconds: float")              \
      .Attr("use_peer_memory: bool")

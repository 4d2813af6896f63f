// The graph of a SavedModel, changed so that the model can be served: tables belong to the process,
// keys are found by ServedLookup, and variables can be written from outside.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tf/serving/session/state_nodes.h"

namespace group_embedding {

// A variable of the checkpoint of the SavedModel, and the graph's nodes for it.
struct ServedVariable {
  std::string key;       // in the checkpoint
  std::string resource;  // of a table by row number: its name in ServedTables; else ""
  tensorflow::DataType dtype;
  StateNodes nodes;  // of one that is no table
};

// Changes the graph of `meta` for one session.
//
// model, slot: see ServedTables. Slot 0 restores tables from files; in slot 1, whose tables are
// those of slot 0, restoring does nothing.
// gpu: whether the first GPU of the session looks rows up; keys are found on the host.
// stored: the type of a variable in the checkpoint, by its key; that of a table by row number may
// be another than the graph's, where its rows were quantised.
// variables: those that the graph restores. Tables by row number that nothing but lookups reads
// belong to the process, too.
// others: the state that no delta changes: hash tables, and variables that are no whole tensor of
// the checkpoint.
// unread: inputs of signatures that need not be fed: see ReadIdsFromRequests.
absl::Status RewriteGraph(int64_t model, int slot, bool gpu,
                          const std::function<tensorflow::DataType(const std::string& key)>& stored,
                          tensorflow::MetaGraphDef* meta, std::vector<ServedVariable>* variables,
                          std::vector<StateNodes>* others, std::set<std::string>* unread);

}  // namespace group_embedding

// ServedModel: a SavedModel that answers each request from one version, while deltas are applied.
//
// Two sessions have the dense variables, one of the current version, one of the version before it
// or of the next; the tables belong to the model, and each session sees them with the overlay of
// its version. A request takes the current session, and counts itself in for as long as it runs. An
// apply waits until the other session has no request, moves the current overlay into the base,
// writes the delta to the other session and its overlays, and makes that session the current one:
// one store, by which tables and dense variables change together.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serving/session/delta.h"
#include "serving/session/options.h"
#include "serving/session/two_slots.h"
#include "tf/serving/ops/served_tables.h"
#include "tf/serving/session/model_session.h"
#include "tf/serving/session/rewrite_graph.h"
#include "tf/serving/session/signatures.h"

namespace group_embedding {

struct Answer {
  int64_t version;
  NamedTensors outputs;
};

class ServedModel {
 public:
  static absl::Status Open(const std::string& path, const ServingOptions& options,
                           std::unique_ptr<ServedModel>* model);
  // Waits for the calls in progress.
  ~ServedModel();

  // signature: "": "serving_default". outputs: none: all. The computation ends soon after the
  // deadline, or after `is_cancelled` says that the sender is gone; it may be null.
  absl::Status Predict(const std::string& signature, const NamedTensors& inputs,
                       std::vector<std::string> outputs, const Deadline& deadline,
                       std::function<bool()> is_cancelled, Answer* answer);
  absl::Status Apply(const std::string& folder);
  absl::Status Rollback();

  int64_t version();
  std::string SignaturesJson() const;
  std::string InfoJson();

 private:
  // What is known of the version in a slot.
  struct Version {
    int64_t number = 0, step = -1, time = -1;  // time: microseconds since 1970; -1: not known
    int64_t base = 0;
    uint64_t base_id = 0;
  };

  struct Slot {
    std::unique_ptr<ModelSession> session;
    Version version;
    // Whether it has a complete version that is not the current one.
    bool can_return_to = false;
  };

  // Names in the graph, of all dense variables, in one order.
  struct DenseNames {
    std::vector<std::string> keys, reads, fed, assigns;
  };

  // What the next version has: changed rows, and all dense variables by key.
  struct Changes {
    std::map<ServedTables::Entry*, RowChanges> rows;
    std::map<std::string, tensorflow::Tensor> values;
  };

  ServedModel(std::string path, const ServingOptions& options, std::shared_ptr<LowerTier> lower);

  absl::Status Load();
  absl::Status ReadBaseRecord();
  absl::Status MakeSession(int slot, const tensorflow::MetaGraphDef& meta);
  absl::Status ShareVariables();
  // The values of all dense variables, by key; they share the session's memory.
  absl::Status ReadVariables(ModelSession* session,
                             std::map<std::string, tensorflow::Tensor>* values) const;
  DenseNames NamesOfDense() const;
  // Builds what requests of each signature run, so that the first of them does not wait for it.
  void PrepareSignatures(ModelSession* session) const;
  // Builds what an apply runs: requests wait for a session that builds something.
  absl::Status PrepareApply(ModelSession* session) const;
  absl::Status CheckFollows(const VersionRecord& record) const;
  // Reads and verifies a delta, and converts it to the model's types.
  absl::Status ReadChanges(const std::string& folder, const VersionRecord& record,
                           Changes* changes);
  // value: before the change; replaced by what it is afterwards.
  absl::Status ConvertVariable(const ServedVariable& variable, VariableChange* change,
                               tensorflow::Tensor* value);
  absl::Status ConvertRows(const ServedVariable& variable, VariableChange* change,
                           RowChanges* rows);
  // Writes the version after the current one into a slot without requests.
  absl::Status WriteSlot(int index, const Changes& changes);
  // Gives a session all dense variables, by key.
  absl::Status Assign(ModelSession* session,
                      const std::map<std::string, tensorflow::Tensor>& values) const;
  // The checkpoint's key of a table by row number, in quotes; "null" of a keyed table.
  std::string KeyOf(const std::string& resource) const;
  absl::Status WriteState();
  absl::Status Resume();

  static constexpr char kStateTitle[] = "group_embedding serving state 1\n";

  const std::string path_;
  const ServingOptions options_;
  std::shared_ptr<ServedTables> tables_;
  int64_t number_;  // of tables_
  std::map<std::string, Signature> signatures_;
  std::map<std::string, ServedVariable> variables_;  // by key
  std::vector<StateNodes> others_;                   // what no delta changes
  std::array<Slot, kNumSlots> slots_;
  TwoSlots requests_;                 // in slots_
  Version base_;                      // as it was opened
  std::vector<std::string> applied_;  // folders of deltas, since then

  std::mutex mutex_;  // one apply, rollback or info at a time
};

}  // namespace group_embedding

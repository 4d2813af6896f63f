#include "tf/serving/session/served_model.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/serving/session/read_saved_model.h"
#include "tf/serving/session/restored_variables.h"
#include "tf/support/file_systems.h"

namespace group_embedding {
namespace {

using ::tensorflow::Env;
using ::tensorflow::MetaGraphDef;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status DataLoss(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::DataLossError(status.message());
}

std::string NameOf(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == path.npos) return "";
  const size_t slash = path.rfind('/', end);
  return path.substr(slash == path.npos ? 0 : slash + 1,
                     slash == path.npos ? end + 1 : end - slash);
}

// A folder's name, if it is a number.
int64_t NumberOf(const std::string& name) {
  if (name.empty() || name.size() > 18 || name.find_first_not_of("0123456789") != name.npos) {
    return 0;
  }
  return std::stoll(name);
}

}  // namespace

ServedModel::ServedModel(std::string path, const ServingOptions& options,
                         std::shared_ptr<LowerTier> lower)
    : path_(std::move(path)),
      options_(options),
      tables_(std::make_shared<ServedTables>(options.quantize, std::move(lower))),
      number_(ServedTables::Register(tables_)) {}

ServedModel::~ServedModel() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int slot = 0; slot < kNumSlots; ++slot) requests_.WaitUntilFree(slot);
  for (Slot& slot : slots_) slot.session.reset();
  ServedTables::Unregister(number_);
}

absl::Status ServedModel::Open(const std::string& path, const ServingOptions& options,
                               std::unique_ptr<ServedModel>* model) {
  std::shared_ptr<LowerTier> lower;
  if (options.tiers.has_lower()) {
    Status status;
    lower = OpenLowerTier(options.tiers, &status);
    if (!status.ok()) return absl::UnavailableError(status.message());
  }
  if (options.tiers.hbm_bytes > 0 && options.gpu < 0) {
    return absl::InvalidArgumentError(
        "option 'tiers': hbm=SIZE expects the option 'devices' to be a GPU, as GPU:0");
  }
  std::unique_ptr<ServedModel> opened(new ServedModel(path, options, std::move(lower)));
  if (options.gpu >= 0) TF_RETURN_IF_ERROR(opened->tables_->UseDevice(options.gpu));
  TF_RETURN_IF_ERROR(opened->Load());
  TF_RETURN_IF_ERROR(opened->Resume());
  *model = std::move(opened);
  return absl::OkStatus();
}

absl::Status ServedModel::Load() {
  MetaGraphDef meta;
  TF_RETURN_IF_ERROR(ReadMetaGraph(path_, options_.tags, &meta));
  TF_RETURN_IF_ERROR(ReadBaseRecord());
  signatures_ = SignaturesOf(meta);
  tensorflow::BundleReader checkpoint(Env::Default(), path_ + "/variables/variables");
  // What the checkpoint lacks, or cannot say, the restore will tell.
  const auto stored = [&](const std::string& key) {
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    TensorShape shape;
    if (checkpoint.status().ok()) {
      checkpoint.LookupDtypeAndShape(key, &dtype, &shape).IgnoreError();
    }
    return dtype;
  };
  JoinVariables(ReadObjects(&checkpoint), &meta);
  for (int slot = 0; slot < kNumSlots; ++slot) {
    MetaGraphDef rewritten = meta;
    std::vector<ServedVariable> variables;
    std::set<std::string> unread;
    TF_RETURN_IF_ERROR(RewriteGraph(number_, slot, options_.gpu >= 0, stored, &rewritten,
                                    &variables, &others_, &unread));
    for (auto& [name, signature] : signatures_) signature.LeaveOut(unread);
    for (ServedVariable& variable : variables) variables_[variable.key] = variable;
    TF_RETURN_IF_ERROR(MakeSession(slot, rewritten));
    slots_[slot].version = base_;
    PrepareSignatures(slots_[slot].session.get());
    if (base_.base_id == 0) continue;  // no delta can follow
    TF_RETURN_IF_ERROR(PrepareApply(slots_[slot].session.get()));
  }
  return absl::OkStatus();
}

void ServedModel::PrepareSignatures(ModelSession* session) const {
  for (const auto& [name, signature] : signatures_) {
    std::vector<std::string> outputs, fetches;
    absl::Status prepared = signature.Find(&outputs, &fetches);
    prepared.Update(session->Prepare(signature.feeds(), fetches, {}));
    prepared.IgnoreError();  // requests of the signature fail with it
  }
}

absl::Status ServedModel::ReadBaseRecord() {
  base_.number = base_.base = options_.version.value_or(NumberOf(NameOf(path_)));
  const std::string file = path_ + "/assets.extra/version";
  if (!Env::Default()->FileExists(file).ok()) return absl::OkStatus();
  VersionRecord record;
  TF_RETURN_IF_ERROR(DataLoss(ReadVersionRecord(file, FileSystemOf(file), &record)));
  if (record.kind != VersionRecord::kBase) {
    return absl::DataLossError("file '" + file + "': expected the record of a base");
  }
  base_ = {record.version, record.step, record.time, record.base, record.base_id};
  return absl::OkStatus();
}

absl::Status ServedModel::MakeSession(int slot, const MetaGraphDef& meta) {
  tensorflow::ConfigProto config;
  config.set_allow_soft_placement(true);
  if (options_.threads > 0) {
    config.set_intra_op_parallelism_threads(options_.threads);
  }
  if (options_.inter_op_threads > 0) {
    config.set_inter_op_parallelism_threads(options_.inter_op_threads);
  }
  if (options_.gpu < 0) {
    (*config.mutable_device_count())["GPU"] = 0;
  } else {
    config.mutable_gpu_options()->set_allow_growth(true);  // copies of rows need memory, too
    if (options_.gpu > 0) {
      config.mutable_gpu_options()->set_visible_device_list(std::to_string(options_.gpu));
    }
  }
  std::unique_ptr<ModelSession>& session = slots_[slot].session;
  TF_RETURN_IF_ERROR(ModelSession::Make(path_, meta, config, &session));
  if (slot > 0) {
    TF_RETURN_IF_ERROR(ShareVariables());
  } else {
    TF_RETURN_IF_ERROR(tables_->restore_failure.Explain(session->Restore()));
    if (options_.tiers.has_lower()) tables_->StartCaches(options_.tiers);
    if (options_.gpu >= 0) {
      TF_RETURN_IF_ERROR(tables_->MakeCopies(options_.tiers.hbm_bytes));
    }
  }
  return session->Initialize();
}

// The second session begins with the first one's variables: with their memory, until one of them is
// assigned another value.
absl::Status ServedModel::ShareVariables() {
  std::vector<StateNodes> states = others_;
  for (const auto& [key, variable] : variables_) {
    if (variable.resource.empty()) states.push_back(variable.nodes);
  }
  if (states.empty()) return absl::OkStatus();
  std::vector<std::string> reads, fed, assigns;
  for (const StateNodes& state : states) {
    reads.insert(reads.end(), state.reads.begin(), state.reads.end());
    fed.insert(fed.end(), state.fed.begin(), state.fed.end());
    assigns.push_back(state.assign);
  }
  std::vector<Tensor> values, none;
  TF_RETURN_IF_ERROR(slots_[0].session->Call({}, reads, {}, {}, &values));
  auto value = values.begin();
  for (const StateNodes& state : states) {
    for (size_t i = 0; i < state.reads.size(); ++i, ++value) {
      if (state.in_place) *value = tensorflow::tensor::DeepCopy(*value);
    }
  }
  return slots_[1].session->Call(fed, {}, assigns, values, &none);
}

ServedModel::DenseNames ServedModel::NamesOfDense() const {
  DenseNames names;
  for (const auto& [key, variable] : variables_) {
    if (!variable.resource.empty()) continue;
    names.keys.push_back(key);
    names.reads.push_back(variable.nodes.reads[0]);
    names.fed.push_back(variable.nodes.fed[0]);
    names.assigns.push_back(variable.nodes.assign);
  }
  return names;
}

absl::Status ServedModel::PrepareApply(ModelSession* session) const {
  const DenseNames names = NamesOfDense();
  if (names.keys.empty()) return absl::OkStatus();
  TF_RETURN_IF_ERROR(session->Prepare({}, names.reads, {}));
  return session->Prepare(names.fed, {}, names.assigns);
}

// All in one call, and always the same: each set of names that a session is called with makes it
// optimize its whole graph.
absl::Status ServedModel::ReadVariables(ModelSession* session,
                                        std::map<std::string, Tensor>* values) const {
  const DenseNames names = NamesOfDense();
  if (names.keys.empty()) return absl::OkStatus();
  std::vector<Tensor> read;
  TF_RETURN_IF_ERROR(session->Call({}, names.reads, {}, {}, &read));
  for (size_t i = 0; i < read.size(); ++i) (*values)[names.keys[i]] = read[i];
  return absl::OkStatus();
}

absl::Status ServedModel::Assign(ModelSession* session,
                                 const std::map<std::string, Tensor>& values) const {
  const DenseNames names = NamesOfDense();
  if (names.keys.empty()) return absl::OkStatus();
  std::vector<Tensor> fed, none;
  for (const std::string& key : names.keys) fed.push_back(values.at(key));
  return session->Call(names.fed, {}, names.assigns, fed, &none);
}

absl::Status ServedModel::Predict(const std::string& signature, const NamedTensors& inputs,
                                  std::vector<std::string> outputs, const Deadline& deadline,
                                  std::function<bool()> is_cancelled, Answer* answer) {
  const std::string name = signature.empty() ? "serving_default" : signature;
  const auto found = signatures_.find(name);
  if (found == signatures_.end()) {
    std::string known;
    for (const auto& [other, def] : signatures_) known += (known.empty() ? "" : ", ") + other;
    return absl::NotFoundError("expected one of the signatures " + known + ", got '" + name + "'");
  }
  std::vector<Tensor> ordered, fetched;
  std::vector<std::string> fetches;
  TF_RETURN_IF_ERROR(found->second.Order(inputs, &ordered));
  TF_RETURN_IF_ERROR(found->second.Find(&outputs, &fetches));
  const TwoSlots::Pin pin(&requests_);
  const Slot& slot = slots_[pin.slot()];
  answer->version = slot.version.number;
  Deadline read_deadline = deadline;
  if (options_.tiers.timeout) read_deadline.Shorten(*options_.tiers.timeout);
  ServedRequest request({name, ordered}, read_deadline, deadline, std::move(is_cancelled));
  TF_RETURN_IF_ERROR(request.CheckNow());
  const absl::Status called = slot.session->Call(found->second.feeds(), fetches, {},
                                                 found->second.Feed(ordered), &fetched, &request);
  if (!called.ok()) return request.failure.Explain(called);
  for (size_t i = 0; i < fetched.size(); ++i) answer->outputs.emplace_back(outputs[i], fetched[i]);
  return absl::OkStatus();
}

int64_t ServedModel::version() {
  const TwoSlots::Pin pin(&requests_);
  return slots_[pin.slot()].version.number;
}

}  // namespace group_embedding

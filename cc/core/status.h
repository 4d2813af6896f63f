// Status: how an error leaves a function of the core.
//
// A Status is OK, or has one sentence for people: the expected and the actual value, which table or
// file, and what to do. The compiler warns where a returned Status is not looked at. A constructor
// or a factory, which returns something else, takes a `Status*` and sets it.
//
// The core throws in two cases only: by Require and RequireCuda (device_buffer.h), in code that
// enqueues work on a GPU and has results of its own to return, and std::bad_alloc where memory is
// lacking. The callers in tf/ and bindings/ catch both. An error in a batch's ids is a Fault
// (fault.h), since a CUDA thread can fill one.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#ifdef __NVCC__
// nvcc 13 warns of every assignment to a [[nodiscard]] class. A discarded Status has warning 3004.
#pragma nv_diag_suppress 2810
#endif

namespace group_embedding {

class [[nodiscard]] Status {
 public:
  Status() = default;
  // An error; OK if the sentence is empty. Implicit, so that a function returns its sentence.
  Status(std::string error) : message_(std::move(error)) {}
  Status(const char* error) : message_(error) {}

  bool ok() const { return message_.empty(); }
  // The sentence; empty if OK.
  const std::string& message() const { return message_; }

  // The error with `where` before its sentence; OK stays OK.
  Status In(const std::string& where) const { return ok() ? Status() : Status(where + message_); }

 private:
  std::string message_;
};

// Throws std::runtime_error unless `status` is OK.
inline void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

}  // namespace group_embedding

// CallDescription: what all ranks have to agree on in the calls of one op.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "exchange/host/messages.h"

namespace group_embedding {

// Describes the calls of one op in a text that has to be the same on all ranks. Each call compares
// the digests; if they differ, the error says how the texts differ.
struct CallDescription {
  CallDescription() : CallDescription("") {}
  explicit CallDescription(std::string text)
      : text(std::make_shared<const std::string>(std::move(text))), digest(DigestOf(*this->text)) {}

  std::shared_ptr<const std::string> text;
  uint64_t digest;
};

}  // namespace group_embedding

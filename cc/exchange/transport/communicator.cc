#include "exchange/transport/communicator.h"

#include <vector>

namespace group_embedding {

Status ExchangeEqual(Communicator* communicator, const void* send, void* receive, int64_t bytes,
                     Stream stream) {
  const std::vector<int64_t> sizes(communicator->num_ranks(), bytes);
  return communicator->AllToAll(send, sizes.data(), receive, sizes.data(), stream);
}

}  // namespace group_embedding

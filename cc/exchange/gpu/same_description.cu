#include <cuda_runtime_api.h>

#include <algorithm>

#include "exchange/gpu/same_description.h"
#include "exchange/host/messages.h"

namespace group_embedding {
namespace {

// Sends `description` to every rank and copies the descriptions of all ranks, of bytes_of_rank
// bytes each, to the host.
Status Gather(const std::string& description, const std::vector<int64_t>& bytes_of_rank,
              Communicator* communicator, const NamedMemory& memory, cudaStream_t stream,
              std::string* received) {
  std::string sent;
  int64_t num_received = 0;
  for (const int64_t bytes : bytes_of_rank) {
    sent += description;
    num_received += bytes;
  }
  const std::vector<int64_t> send_bytes(bytes_of_rank.size(),
                                        static_cast<int64_t>(description.size()));
  auto* send = static_cast<char*>(
      memory.on_device("descriptions", static_cast<int64_t>(sent.size()) + num_received));
  char* receive = send + sent.size();
  received->resize(num_received);
  cudaError_t copied =
      cudaMemcpyAsync(send, sent.data(), sent.size(), cudaMemcpyHostToDevice, stream);
  if (copied != cudaSuccess) return cudaGetErrorString(copied);
  const Status status =
      communicator->AllToAll(send, send_bytes.data(), receive, bytes_of_rank.data(), stream);
  if (!status.ok()) return status;
  copied = cudaMemcpyAsync(received->data(), receive, num_received, cudaMemcpyDeviceToHost, stream);
  if (copied != cudaSuccess) return cudaGetErrorString(copied);
  return communicator->Wait(stream);
}

}  // namespace

DescriptionHeader HeaderOf(const std::string& description) {
  return {DigestOf(description), static_cast<int64_t>(description.size())};
}

Status FindDisagreement(const std::string& description,
                        const std::vector<DescriptionHeader>& headers, Communicator* communicator,
                        const NamedMemory& memory, cudaStream_t stream) {
  // Every rank sees the same headers, so all ranks take the same branch.
  if (std::all_of(headers.begin(), headers.end(), [&](const DescriptionHeader& header) {
        return header.digest == headers[0].digest;
      })) {
    return {};
  }
  std::vector<int64_t> bytes;
  for (const DescriptionHeader& header : headers) bytes.push_back(header.bytes);
  std::string received;
  Status status = Gather(description, bytes, communicator, memory, stream, &received);
  const uint64_t mine = headers[communicator->rank()].digest;
  size_t at = 0;
  for (size_t n = 0; n < headers.size() && status.ok(); at += bytes[n++]) {
    if (headers[n].digest == mine) continue;
    status = DifferenceOf(description, received.substr(at, bytes[n]), static_cast<int64_t>(n));
  }
  return status;
}

}  // namespace group_embedding

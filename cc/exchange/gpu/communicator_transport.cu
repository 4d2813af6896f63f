#include "core/device_buffer.h"
#include "core/side_stream.h"
#include "exchange/gpu/communicator_transport.h"

namespace group_embedding {

Transfer CommunicatorTransport::Open(const std::string& name, const TransferSize& size) {
  Transfer transfer = LayOut(layout_, size);
  const auto allocate = [&](const std::string& prefix, const std::vector<int64_t>& at) {
    return static_cast<char*>(allocate_(prefix + name, layout_.WireBytes(at.back())));
  };
  char* leaving = allocate("sent_", transfer.sent_at);
  transfer.arrived = allocate(size.is_unpacked ? "arrived_" : "received_", transfer.received_at);
  for (int n = 0; n < layout_.num_ranks; ++n) {
    transfer.to.push_back(leaving + layout_.WireBytes(transfer.sent_at[n * layout_.num_tables()]));
  }
  return transfer;
}

void CommunicatorTransport::Send(const Transfer& transfer, cudaStream_t stream) {
  const std::vector<int64_t> sent = layout_.WireBytesOfRanks(transfer.sent_at),
                             received = layout_.WireBytesOfRanks(transfer.received_at);
  Require(communicator_->AllToAll(transfer.to[0], sent.data(), transfer.arrived, received.data(),
                                  stream));
}

void CommunicatorTransport::ExchangeRows(const Transfer& transfer, const RowsToServe& served,
                                         const StepsOnRows& steps, cudaStream_t stream) {
  const TableRange all = layout_.all_tables();
  void* scratch = allocate_("serve", ServeRowsScratchBytes(layout_.num_parts()));
  SideStream beside;
  RequireCuda(beside.Begin(stream));
  steps.write_addresses(beside.stream());
  RequireCuda(ServeRowsCuda(PartsToServe(layout_, transfer, served, all), served.requests,
                            layout_.type, layout_.wire_type, scratch, stream));
  Send(transfer, stream);
  steps.unpack(all);
  RequireCuda(beside.End());
  steps.look_up(all);
}

}  // namespace group_embedding

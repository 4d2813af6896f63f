// CommunicatorTransport: rows and gradients are written into a send buffer, and a communicator
// sends it.
#pragma once

#include <string>

#include "exchange/gpu/named_memory.h"
#include "exchange/gpu/row_transport.h"
#include "exchange/transport/communicator.h"

namespace group_embedding {

class CommunicatorTransport : public RowTransport {
 public:
  // All arguments are borrowed and must outlive this object.
  CommunicatorTransport(const WireLayout* layout, Communicator* communicator,
                        const NamedMemory::Allocate* allocate)
      : layout_(*layout), communicator_(communicator), allocate_(*allocate) {}

  Transfer OpenRows(const TransferSize& size) override { return Open("rows", size); }
  Transfer OpenGradients(const TransferSize& size) override { return Open("gradients", size); }

  // A second stream writes the addresses while rows are exchanged.
  void ExchangeRows(const Transfer& transfer, const RowsToServe& served, const StepsOnRows& steps,
                    cudaStream_t stream) override;
  void Send(const Transfer& transfer, cudaStream_t stream) override;

 private:
  Transfer Open(const std::string& name, const TransferSize& size);

  const WireLayout& layout_;
  Communicator* const communicator_;
  const NamedMemory::Allocate& allocate_;
};

}  // namespace group_embedding

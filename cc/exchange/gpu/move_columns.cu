#include <type_traits>

#include "core/descriptors.cuh"
#include "core/rows.cuh"
#include "exchange/gpu/move_columns.h"

namespace group_embedding {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 4;  // elements that a thread moves at once, where all are aligned to them
constexpr int64_t kOfBlock = 8 * kThreads;  // pieces that a CUDA block moves

// A ColumnBlock in pieces of `width` elements.
struct Move {
  ColumnBlock block;
  uint32_t pieces_of_row;
  bool is_wide;
};

template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Piece {
  T of[kSize];
};

template <int kSize, typename From, typename To>
__device__ void MovePieces(const Move& move, int64_t begin, int64_t end, float factor) {
  const auto* from = static_cast<const From*>(move.block.from);
  auto* to = static_cast<To*>(move.block.to);
  // Relative to the first row, numbers of pieces have 32 bits, which divide faster than 64.
  const int64_t first_row = begin / move.pieces_of_row;
  const auto skipped = static_cast<uint32_t>(begin - first_row * move.pieces_of_row);
  const auto count = static_cast<uint32_t>(end - begin);
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const int64_t row = first_row + (skipped + i) / move.pieces_of_row;
    const int64_t column = (skipped + i) % move.pieces_of_row * kSize;
    Piece<From, kSize> read = {};
    if (from != nullptr) {
      read = *reinterpret_cast<const Piece<From, kSize>*>(from + row * move.block.from_stride +
                                                          column);
    }
    auto* place = reinterpret_cast<Piece<To, kSize>*>(to + row * move.block.to_stride + column);
    Piece<To, kSize> written = {};
    if (move.block.adds) written = *place;
    const float* row_factors = move.block.row_factors;
    const float by = row_factors == nullptr ? factor : factor * row_factors[row];
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      written.of[e] = FromFloat<To>(by * (ToFloat(written.of[e]) + ToFloat(read.of[e])));
    }
    *place = written;
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    MoveColumnsKernel(const Move* moves, const int64_t* first_blocks, int64_t num_moves,
                      float factor) {
  const int64_t m = FindOwner(first_blocks, num_moves, blockIdx.x);
  const Move move = moves[m];
  const int64_t begin = (int64_t{blockIdx.x} - first_blocks[m]) * kOfBlock;
  const int64_t end = min(begin + kOfBlock, move.block.num_rows * move.pieces_of_row);
  if (move.is_wide) {
    MovePieces<kWide, From, To>(move, begin, end, factor);
  } else {
    MovePieces<1, From, To>(move, begin, end, factor);
  }
}

bool IsWide(const ColumnBlock& block, DataType from_type, DataType to_type) {
  const auto is_aligned = [](const void* data, DataType type) {
    return reinterpret_cast<uintptr_t>(data) % (kWide * SizeOf(type)) == 0;
  };
  return block.dim % kWide == 0 && block.from_stride % kWide == 0 && block.to_stride % kWide == 0 &&
         is_aligned(block.from, from_type) && is_aligned(block.to, to_type);
}

}  // namespace

int64_t MoveColumnsScratchBytes(int64_t num_blocks) {
  return AlignScratch(num_blocks * sizeof(Move)) + AlignScratch((num_blocks + 1) * 8);
}

cudaError_t MoveColumnsCuda(const std::vector<ColumnBlock>& blocks, DataType from_type,
                            DataType to_type, float factor, void* scratch, cudaStream_t stream) {
  std::vector<Move> moves;
  BlockPlan plan;
  for (const ColumnBlock& block : blocks) {
    if (block.num_rows == 0) continue;
    const bool is_wide = IsWide(block, from_type, to_type);
    const auto pieces = static_cast<uint32_t>(is_wide ? block.dim / kWide : block.dim);
    moves.push_back({block, pieces, is_wide});
    plan.Append((block.num_rows * pieces + kOfBlock - 1) / kOfBlock);
  }
  if (moves.empty()) return cudaSuccess;
  if (plan.num_blocks() > INT32_MAX) return cudaErrorInvalidConfiguration;
  DeviceArrays arrays(scratch);
  const Move* on_device = arrays.Add(moves);
  const int64_t* first_blocks = arrays.Add(plan.first_blocks());
  const cudaError_t sent = arrays.Send(stream);
  if (sent != cudaSuccess) return sent;
  return ForDeviceType(from_type, [&](auto* read) {
    return ForDeviceType(to_type, [&](auto* written) {
      using From = std::remove_pointer_t<decltype(read)>;
      using To = std::remove_pointer_t<decltype(written)>;
      MoveColumnsKernel<From, To>
          <<<static_cast<unsigned>(plan.num_blocks()), kThreads, 0, stream>>>(
              on_device, first_blocks, static_cast<int64_t>(moves.size()), factor);
      return cudaGetLastError();
    });
  });
}

}  // namespace group_embedding

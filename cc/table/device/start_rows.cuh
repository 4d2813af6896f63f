// Writes the initial values and slots of new rows.
#pragma once

#include "core/rows.cuh"
#include "table/device/device_table_ref.cuh"

namespace group_embedding {

template <typename T>
__device__ void FillSlots(const SlotArray& array, const int64_t* rows, int count, int lane) {
  for (int e = lane; e < count * array.width; e += kWarpSize) {
    const int64_t at = rows[e / array.width] * array.width + e % array.width;
    static_cast<T*>(array.values)[at] = FromFloat<T>(array.initial);
  }
}

// A warp calls it together: rows, keys [count] in shared memory, count <= 32.
__device__ inline void StartRows(const DeviceTableRef& table, const int64_t* rows,
                                 const int64_t* keys, int count, int lane) {
  const InitialValues& initial = table.initial;
  auto start = [&](auto type) {
    using T = decltype(type);
    ForVector<T>(table.shape.vector_bytes, [&](auto vector) {
      using Vector = decltype(vector);
      const int num_vectors = table.shape.num_vectors;
      for (int e = lane; e < count * num_vectors; e += kWarpSize) {
        const int which = e / num_vectors, column = e % num_vectors;
        if (initial.matrix_rows > 0) {
          const char* from = table.Row(MatrixRow(keys[which], initial.matrix_rows));
          vector = Vector::Load(from + column * sizeof(Vector));
        } else {
          float values[Vector::kSize];
          for (int k = 0; k < Vector::kSize; ++k) {
            values[k] = InitialValue(initial, keys[which], column * Vector::kSize + k);
          }
          vector = Vector::Round(values);
        }
        reinterpret_cast<Vector*>(table.Row(rows[which]))[column] = vector;
      }
    });
  };
  auto for_type = [](DataType dtype, auto&& body) {
    switch (dtype) {
      case DataType::kFloat16:
        return body(__half());
      case DataType::kBFloat16:
        return body(__nv_bfloat16());
      default:
        return body(float());
    }
  };
  for_type(table.dtype, start);
  for (int s = 0; s < table.num_slot_arrays; ++s) {
    const SlotArray& array = table.slot_arrays[s];
    for_type(array.dtype, [&](auto type) { FillSlots<decltype(type)>(array, rows, count, lane); });
  }
}

}  // namespace group_embedding

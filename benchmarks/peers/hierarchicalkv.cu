// NVIDIA HierarchicalKV behind plain functions, for bench_table.py. Its headers are not part of
// this repository; with its source in FOLDER:
//     nvcc -arch=sm_90 -std=c++17 -O3 -I FOLDER/include -Xcompiler -fPIC -shared \
//         benchmarks/peers/hierarchicalkv.cu -o libhierarchicalkv.so
// Keys are all different, as HierarchicalKV asks of those that it inserts.
#include <cstdint>

#include "merlin_hashtable.cuh"

namespace {

using HkvTable = nv::merlin::HashTable<uint64_t, float, uint64_t, nv::merlin::EvictStrategy::kLru,
                                       nv::merlin::Sm80>;

HkvTable* TableOf(void* table) { return static_cast<HkvTable*>(table); }

}  // namespace

extern "C" {

// All rows in GPU memory, space for all keys from the start: what its own benchmark measures.
void* hkv_create(int64_t capacity, int64_t dim, int64_t value_gigabytes) {
  nv::merlin::HashTableOptions options;
  options.init_capacity = capacity;
  options.max_capacity = capacity;
  options.dim = dim;
  options.max_hbm_for_vectors = nv::merlin::GB(value_gigabytes);
  auto* table = new HkvTable();
  table->init(options);
  return table;
}

void hkv_destroy(void* table) { delete TableOf(table); }

int64_t hkv_size(void* table, cudaStream_t stream) { return TableOf(table)->size(stream); }

void hkv_assign(void* table, int64_t num_keys, const uint64_t* keys, const float* values,
                cudaStream_t stream) {
  TableOf(table)->insert_or_assign(num_keys, keys, values, nullptr, stream);
}

// values: [num_keys, dim]; those of keys that are not there are left as they are.
void hkv_find(void* table, int64_t num_keys, const uint64_t* keys, float* values, bool* found,
              cudaStream_t stream) {
  TableOf(table)->find(num_keys, keys, values, found, nullptr, stream);
}

// addresses: [num_keys] of rows of the table.
void hkv_find_addresses(void* table, int64_t num_keys, const uint64_t* keys, float** addresses,
                        bool* found, cudaStream_t stream) {
  TableOf(table)->find(num_keys, keys, addresses, found, nullptr, stream);
}

// values: [num_keys, dim]; read for keys that are not there, written for those that are.
void hkv_find_or_insert(void* table, int64_t num_keys, const uint64_t* keys, float* values,
                        cudaStream_t stream) {
  TableOf(table)->find_or_insert(num_keys, keys, values, nullptr, stream);
}

void hkv_find_or_insert_addresses(void* table, int64_t num_keys, const uint64_t* keys,
                                  float** addresses, bool* found, cudaStream_t stream) {
  TableOf(table)->find_or_insert(num_keys, keys, addresses, found, nullptr, stream);
}

void hkv_erase(void* table, int64_t num_keys, const uint64_t* keys, cudaStream_t stream) {
  TableOf(table)->erase(num_keys, keys, stream);
}

}  // extern "C"

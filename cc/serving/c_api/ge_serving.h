/* libge_serving: SavedModels with embedding tables, answered from C or C++.
 *
 * A model answers each request from one version: all tables and all dense weights of one instant.
 * Deltas move it to the next version while requests go on.
 *
 *   GeModel* model;
 *   char* error = NULL;
 *   if (ge_serving_open("export/1", "{}", &model, &error) != GE_OK) { puts(error); ... }
 *   GeTensor input = {"user", GE_INT64, 1, dims, keys, sizeof(keys)};
 *   GeResponse* response;
 *   ge_serving_predict(model, "serving_default", &input, 1, NULL, 0, &response, &error);
 *   const GeTensor* score = ge_serving_output(response, 0);
 *
 * Every function may be called from any thread at any time, except that `ge_serving_close` waits
 * for the calls in progress, and no call may begin after it. A predict never waits for an apply.
 *
 * Errors: a function returns a code of TensorFlow Serving (that is, of gRPC) and stores a sentence
 * at `*error`, unless `error` is NULL. The caller frees the sentence with `ge_serving_free`. On
 * GE_OK `*error` is left alone. Outputs are written on GE_OK only.
 */
#ifndef GE_SERVING_H_
#define GE_SERVING_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum GeCode {
  GE_OK = 0,
  GE_CANCELLED = 1,
  GE_UNKNOWN = 2,
  GE_INVALID_ARGUMENT = 3, /* an input is missing, or of a wrong dtype, shape or rank */
  GE_DEADLINE_EXCEEDED = 4,
  GE_NOT_FOUND = 5,      /* a folder, or a signature */
  GE_ALREADY_EXISTS = 6, /* a delta that is applied already */
  GE_PERMISSION_DENIED = 7,
  GE_RESOURCE_EXHAUSTED = 8,
  GE_FAILED_PRECONDITION = 9, /* a delta that does not follow the model's version */
  GE_ABORTED = 10,
  GE_OUT_OF_RANGE = 11,
  GE_UNIMPLEMENTED = 12,
  GE_INTERNAL = 13,
  GE_UNAVAILABLE = 14,
  GE_DATA_LOSS = 15 /* a file is damaged or incomplete */
} GeCode;

/* Some numbers of TensorFlow's DataType; `dtype` below may be any that TensorFlow has. */
enum {
  GE_FLOAT = 1,
  GE_DOUBLE = 2,
  GE_INT32 = 3,
  GE_UINT8 = 4,
  GE_STRING = 7,
  GE_INT64 = 9,
  GE_BOOL = 10,
  GE_BFLOAT16 = 14,
  GE_HALF = 19
};

/* An element of a tensor of strings. Not terminated by zero. */
typedef struct GeString {
  const char* data;
  size_t size;
} GeString;

typedef struct GeTensor {
  const char* name; /* the signature's key, such as "user"; not the name of a graph's tensor */
  int32_t dtype;    /* TensorFlow's DataType */
  int32_t rank;
  const int64_t* dims; /* [rank] */
  const void* data;    /* row-major; of GE_STRING: GeString[elements] */
  size_t bytes;        /* of `data` */
} GeTensor;

typedef struct GeModel GeModel;
typedef struct GeResponse GeResponse;

/* Opens a SavedModel: the folder with saved_model.pb.
 *
 * options: JSON, or NULL for none. An unknown key is an error.
 *   "tensorflow": folder of the Python package `tensorflow`. Default: the TensorFlow that the
 *      process has loaded, or GROUP_EMBEDDING_TENSORFLOW, or the one installed beside this library.
 *   "tags": [string], default ["serve"].
 *   "version": integer >= 0, the version of the base. Default: the folder's name if it is a number,
 *      else 0.
 *   "quantize": "int8", "fp8" or "bfloat16": the storage of rows. Default: as trained.
 *   "threads": threads of an op; default: one per core.
 *   "inter_op_threads": threads for ops side by side. Default: 0, the calling thread runs all ops
 * of its request, one by one; they share the threads of an op. "state": a file that holds the
 * applied deltas' folders; if it names deltas of this base, they are applied before the function
 * returns. Default: none.
 *   "devices": ["CPU"], the default, or ["GPU:0"]: lookups and the dense part run on that GPU, keys
 *      are found on the host.
 *   "tiers": where rows of keyed tables are, "memory=16GB,rocksdb=/var/rows", and what a request
 *      does that needs rows from there: ",timeout=50ms,on_failure=error,insert=at_once,expire=1h".
 *      docs/guides/serving.md says what each is. Default: all rows are in memory.
 */
GeCode ge_serving_open(const char* path, const char* options, GeModel** model, char** error);

/* Waits for the calls in progress, then frees the model. NULL is allowed. */
void ge_serving_close(GeModel* model);

/* Answers one request from the newest version.
 *
 * signature: NULL or "" for "serving_default".
 * inputs: [num_inputs], each input of the signature once; copied where needed, not kept.
 * outputs: [num_outputs] the signature's output keys to compute; none: all of them, by name.
 * response: freed by `ge_serving_free_response`; may outlive later applies, but not the model.
 */
GeCode ge_serving_predict(GeModel* model, const char* signature, const GeTensor* inputs,
                          size_t num_inputs, const char* const* outputs, size_t num_outputs,
                          GeResponse** response, char** error);

/* Whether the sender of a request is gone: not 0. `argument` is the caller's. */
typedef int (*GeIsCancelled)(void* argument);

/* ge_serving_predict, for a request that its sender waits for no longer than `timeout_us`
 * microseconds; at least 0. Nothing is computed for nobody: after the deadline the function returns
 * GE_DEADLINE_EXCEEDED, and once `is_cancelled` says so, GE_CANCELLED. It looks between two ops of
 * the graph on a CPU and within lookups, each few milliseconds; one op of TensorFlow is not
 * interrupted, nor a function that XLA has compiled, nor what a GPU computes.
 *
 * is_cancelled: called during the call, by one thread at a time, not always the calling one; NULL:
 *   the sender stays. It must return at once.
 *
 * Rows that the tier below memory has not brought by `timeout=` of the option "tiers" are what the
 * option says of failures: GE_DEADLINE_EXCEEDED, or rows of absent keys. Without `timeout=` a read
 * that hangs is waited for. */
GeCode ge_serving_predict_within(GeModel* model, const char* signature, const GeTensor* inputs,
                                 size_t num_inputs, const char* const* outputs, size_t num_outputs,
                                 int64_t timeout_us, GeIsCancelled is_cancelled, void* argument,
                                 GeResponse** response, char** error);

int64_t ge_serving_response_version(const GeResponse* response);
size_t ge_serving_num_outputs(const GeResponse* response);
/* NULL if `i` is too large. Its memory belongs to the response. */
const GeTensor* ge_serving_output(const GeResponse* response, size_t i);
void ge_serving_free_response(GeResponse* response);

/* JSON, freed by `ge_serving_free`:
 *   {"serving_default": {"method_name": "tensorflow/serving/predict",
 *                        "inputs": {"user": {"name": "serving_default_user:0", "dtype": 9,
 *                                            "shape": [-1]}},
 *                        "outputs": {...}}, ...}
 * shape: -1 is any size, null any rank. dtype: TensorFlow's DataType. An input that is a part of a
 * ragged or sparse argument of the exported function has more keys: "part": "flat_values",
 * "row_splits", "indices", "values", "dense_shape", or "unknown" of another type; "of": the input
 * that is the argument's first part; "level": of row splits, from the outermost, 0. */
GeCode ge_serving_signatures(GeModel* model, char** json, char** error);

/* The version that the next request is answered from. */
int64_t ge_serving_version(GeModel* model);

/* JSON, freed by `ge_serving_free`:
 *   {"path": "export/1", "base_version": 0, "version": 17, "previous_version": 16 or null,
 *    "step": 1200, "time": 1764039123.5, "staleness_seconds": 2.5,
 *    "quantize": null, "memory_bytes": 123,
 *    "tables": [{"name": "user", "rows": 10, "dim": 16, "storage": "float32", "bytes": 5000,
 *                "variable": "item/.ATTRIBUTES/VARIABLE_VALUE"}]}
 * With "tiers" a keyed table has more keys, which InferenceSession.info describes.
 * variable: the checkpoint's key of a table by row number; null for a keyed table.
 * step, time: of the trainer when it published the version; null for a base that does not say it.
 * staleness_seconds: now - time; null without a time. */
GeCode ge_serving_info(GeModel* model, char** json, char** error);

/* Applies one delta: a folder that the Publisher wrote. The delta is read and verified wholly
 * before requests see any of it; requests in progress go on with their version. One apply runs at a
 * time; a second one waits. GE_ALREADY_EXISTS: the model has this version or a later one; nothing
 * changes. GE_FAILED_PRECONDITION: the delta's parent is not the model's version, or its base is
 * another. GE_DATA_LOSS: the delta is incomplete or damaged. */
GeCode ge_serving_apply(GeModel* model, const char* folder, char** error);

/* Returns to the version before the last apply: the dense weights and tables of it are kept until
 * the next one. GE_FAILED_PRECONDITION if there is none. */
GeCode ge_serving_rollback(GeModel* model, char** error);

/* Frees a sentence or JSON text of this library. NULL is allowed. */
void ge_serving_free(char* text);

#ifdef __cplusplus
}
#endif

#endif /* GE_SERVING_H_ */

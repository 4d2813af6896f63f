// Where the Python package `tensorflow` is, whose libraries serve.
#pragma once

#include <string>

namespace ge_serving {

// The folder of the package. `stated`: the option "tensorflow", or empty: the TensorFlow that the
// process has loaded, GROUP_EMBEDDING_TENSORFLOW, or the one beside this library's package, in this
// order. Returns an error sentence, or "".
std::string FindTensorFlow(const std::string& stated, std::string* folder);

// The folder of the library that has this function.
std::string OwnFolder();

bool IsFile(const std::string& path);

inline constexpr char kTensorFlowLibrary[] = "libtensorflow_cc.so.2";
inline constexpr char kFrameworkLibrary[] = "libtensorflow_framework.so.2";

}  // namespace ge_serving

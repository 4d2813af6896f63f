// The headers of TensorFlow that nearly every file of tf/ includes. The build compiles them once
// and puts them in front of each file, which then takes a third of the time; every file still
// includes what it uses. Not #pragma once, which g++ warns of where a header is what it compiles.
#ifndef GROUP_EMBEDDING_TF_PRECOMPILED_H_
#define GROUP_EMBEDDING_TF_PRECOMPILED_H_

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#endif  // GROUP_EMBEDDING_TF_PRECOMPILED_H_

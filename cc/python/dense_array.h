// SPDX-License-Identifier: Apache-2.0
// Arrays whose values are in the memory of a C++ array.
#ifndef TF_EXT_CC_PYTHON_DENSE_ARRAY_H_
#define TF_EXT_CC_PYTHON_DENSE_ARRAY_H_

#include "pybind11/numpy.h"

namespace tf_ext {

// Flags of array_t. Without ALIGNED, a view of a buffer that begins at an odd
// address is taken as it is.
inline constexpr int kDense =
    pybind11::array::c_style | pybind11::detail::npy_api::NPY_ARRAY_ALIGNED_;

// As an argument, it takes whatever NumPy casts safely, of any strides.
template <typename T>
using DenseArray = pybind11::array_t<T, kDense>;

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_DENSE_ARRAY_H_

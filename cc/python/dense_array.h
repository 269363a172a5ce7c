// SPDX-License-Identifier: Apache-2.0
// Arrays whose values are in the memory of a C++ array.
#ifndef TF_EXT_CC_PYTHON_DENSE_ARRAY_H_
#define TF_EXT_CC_PYTHON_DENSE_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "pybind11/numpy.h"

namespace tf_ext {

// Flags of array_t. Without ALIGNED, a view of a buffer that begins at an odd
// address is taken as it is.
inline constexpr int kDense =
    pybind11::array::c_style | pybind11::detail::npy_api::NPY_ARRAY_ALIGNED_;

// As an argument, it takes whatever NumPy casts safely, of any strides.
template <typename T>
using DenseArray = pybind11::array_t<T, kDense>;

// A new matrix that TensorFlow takes as a tensor without a copy.
template <typename T>
pybind11::array_t<T> AlignedArray(int64_t rows, int64_t columns) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = static_cast<size_t>(rows * columns) * sizeof(T);
  // A multiple of the alignment, above 0.
  const size_t whole = (bytes / kAlignment + 1) * kAlignment;
  void* const data = std::aligned_alloc(kAlignment, whole);
  if (data == nullptr) throw std::bad_alloc();
  const pybind11::capsule owner(data, [](void* one) { std::free(one); });
  return pybind11::array_t<T>({rows, columns}, static_cast<const T*>(data),
                              owner);
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_DENSE_ARRAY_H_

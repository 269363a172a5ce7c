// SPDX-License-Identifier: Apache-2.0
// Arrays of feature values, for the core.
#ifndef TF_EXT_CC_PYTHON_VALUES_H_
#define TF_EXT_CC_PYTHON_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/hashing/hash_columns.h"
#include "cc/core/hashing/hash_strings.h"
#include "cc/python/dense_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace tf_ext {

std::string DtypeOf(const pybind11::array& array);

// The bytes of a str (as UTF-8) or bytes object, which must stay alive.
std::string_view ViewText(pybind11::handle object, const std::string& where);

// Unlike array_t::ensure, throws NumPy's error if the conversion fails: for
// want of memory, or where warnings are errors.
template <typename T>
pybind11::array Cast(const pybind11::array& array) {
  return pybind11::array_t<T, kDense | pybind11::array::forcecast>(
      static_cast<const pybind11::object&>(array));
}

// The values of an array, in a form that the core can read without the GIL; or
// of a tuple of the offsets, int32 [n + 1], and the text, uint8, of an array of
// Apache Arrow, and of the indices into it, int32, of a DictionaryArray.
class Values {
 public:
  enum class Nan { kRefused, kAllowed };

  Values(const pybind11::object& values, const std::string& name,
         Nan nan = Nan::kRefused);

  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  bool is_text() const { return input_.type == ValueType::kString; }

  // One value per bag.
  HashInput input() const;

 private:
  struct Bytes {
    const char* data;
    size_t item_size;
  };

  void KeepArray(const pybind11::array& array, Nan nan);
  void KeepTexts(const pybind11::tuple& texts);
  void KeepIntegers(const pybind11::array& array);
  void KeepFloats(const pybind11::array& array, Nan nan);
  void KeepBytes(const pybind11::array& array);
  void KeepObjects(const pybind11::array& array);
  static void ViewBytes(const void* values, int64_t begin, int64_t n,
                        std::string_view* views);
  static void ViewObjects(const void* values, int64_t begin, int64_t n,
                          std::string_view* views);

  std::string name_;
  int64_t size_ = 0;
  pybind11::array kept_;
  pybind11::array offsets_;
  pybind11::array indices_;
  Bytes bytes_ = {};
  std::vector<std::string_view> texts_;
  TextArray text_array_;
  IndexedTexts indexed_texts_;
  HashInput distinct_;  // the texts that indices are of
  HashInput input_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_VALUES_H_

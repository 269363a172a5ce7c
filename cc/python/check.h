// SPDX-License-Identifier: Apache-2.0
// Errors of the core as Python's ValueError.
#ifndef TF_EXT_CC_PYTHON_CHECK_H_
#define TF_EXT_CC_PYTHON_CHECK_H_

#include <string>

#include "cc/core/support/status.h"
#include "cc/core/table/config.h"
#include "pybind11/pybind11.h"

namespace tf_ext {

inline void Check(const Status& status) {
  if (!status.ok()) throw pybind11::value_error(status.message());
}

inline TableConfig ParsedConfig(const std::string& text) {
  TableConfig config;
  Check(ParseTableConfig(text, &config));
  return config;
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_CHECK_H_

// SPDX-License-Identifier: Apache-2.0
// TFRecord files in tf_ext._core, for tf_ext.data.
#ifndef TF_EXT_CC_PYTHON_RECORDS_MODULE_H_
#define TF_EXT_CC_PYTHON_RECORDS_MODULE_H_

#include "pybind11/pybind11.h"

namespace tf_ext {

void DefineRecords(pybind11::module_* m);

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_RECORDS_MODULE_H_

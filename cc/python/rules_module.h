// SPDX-License-Identifier: Apache-2.0
// The update rules of tf_ext._core, for tf_ext.tables.sparse_optimizers.
#ifndef TF_EXT_CC_PYTHON_RULES_MODULE_H_
#define TF_EXT_CC_PYTHON_RULES_MODULE_H_

#include "pybind11/pybind11.h"

namespace tf_ext {

void DefineRules(pybind11::module_* m);

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_RULES_MODULE_H_

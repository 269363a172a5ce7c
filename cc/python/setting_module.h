// SPDX-License-Identifier: Apache-2.0
// The context of tf_ext._core that sets a context variable.
#ifndef TF_EXT_CC_PYTHON_SETTING_MODULE_H_
#define TF_EXT_CC_PYTHON_SETTING_MODULE_H_

#include "pybind11/pybind11.h"

namespace tf_ext {

void DefineSetting(pybind11::module_* m);

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_SETTING_MODULE_H_

// SPDX-License-Identifier: Apache-2.0
// The part of tf_ext._core that reads and writes files of snapshots.
#ifndef TF_EXT_CC_PYTHON_SNAPSHOT_MODULE_H_
#define TF_EXT_CC_PYTHON_SNAPSHOT_MODULE_H_

#include "pybind11/pybind11.h"

namespace tf_ext {

void DefineSnapshots(pybind11::module_* m);

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_SNAPSHOT_MODULE_H_

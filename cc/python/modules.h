// SPDX-License-Identifier: Apache-2.0
// The parts of tf_ext._core.
#ifndef TF_EXT_CC_PYTHON_MODULES_H_
#define TF_EXT_CC_PYTHON_MODULES_H_

#include "pybind11/pybind11.h"

namespace tf_ext {

// Batches of columns: signs, and combined rows, for tf_ext.serving.
void DefineColumns(pybind11::module_* m);
// TFRecord files and lines of text, for tf_ext.data.
void DefineRecords(pybind11::module_* m);
// Rows of tables, for tf_ext.snapshot.
void DefineRows(pybind11::module_* m);
// Update rules, for tf_ext.tables.sparse_optimizers.
void DefineRules(pybind11::module_* m);
// The context that sets a context variable.
void DefineSetting(pybind11::module_* m);
// The context that keeps the handler of a signal.
void DefineSignals(pybind11::module_* m);
// Files of snapshots.
void DefineSnapshots(pybind11::module_* m);

}  // namespace tf_ext

#endif  // TF_EXT_CC_PYTHON_MODULES_H_

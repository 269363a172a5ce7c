// SPDX-License-Identifier: Apache-2.0
// The version of tf_ext that the libraries were compiled from. The same as in
// tf_ext/_version.py, which a test compares with what the op library says.
#ifndef TF_EXT_CC_CORE_SUPPORT_VERSION_H_
#define TF_EXT_CC_CORE_SUPPORT_VERSION_H_

namespace tf_ext {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_VERSION_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef TF_EXT_CC_CORE_SUPPORT_STATUS_TEST_UTIL_H_
#define TF_EXT_CC_CORE_SUPPORT_STATUS_TEST_UTIL_H_

#include "cc/core/support/status.h"
#include "gtest/gtest.h"

namespace tf_ext {

// For EXPECT_TRUE and ASSERT_TRUE: prints the message when it fails.
inline testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << status.message();
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_STATUS_TEST_UTIL_H_

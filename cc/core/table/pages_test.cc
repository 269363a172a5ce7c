// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/pages.h"

#include <cstdint>
#include <fstream>

#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// The pages of the address space.
int64_t MappedPages() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(PagesTest, GivesBackAllOfHugeMappings) {
  // A page more, a line more, and a multiple of both.
  for (const size_t more : {size_t{4096}, Pages::kAlignment, size_t{0}}) {
    constexpr size_t kBytes = 2 * Pages::kHugePageBytes;
    const int64_t before = MappedPages();
    for (int round = 0; round < 200; ++round) {
      const Pages pages(kBytes + more, PageSize::kHuge);
      ASSERT_EQ(
          reinterpret_cast<uintptr_t>(pages.data()) % Pages::kHugePageBytes,
          0u);
      pages.data()[0] = pages.data()[pages.bytes() - 1] = 1;
    }
    // Less than a tenth of what was mapped. Signed: there may be fewer.
    constexpr int64_t kMost = 200 * kBytes / 10 / 4096;
    EXPECT_LT(MappedPages() - before, kMost) << more;
  }
}

}  // namespace
}  // namespace tf_ext

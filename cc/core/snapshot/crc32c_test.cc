// SPDX-License-Identifier: Apache-2.0
#include "cc/core/snapshot/crc32c.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tf_ext {
namespace {

using Extend = uint32_t (*)(uint32_t, const void*, size_t);

class Crc32cTest : public testing::TestWithParam<Extend> {
 protected:
  uint32_t Of(const std::vector<uint8_t>& bytes) const {
    return GetParam()(0, bytes.data(), bytes.size());
  }
};

// The values of RFC 3720, appendix B.4.
TEST_P(Crc32cTest, HasThePublishedValues) {
  EXPECT_EQ(Of(std::vector<uint8_t>(32, 0)), 0x8a9136aau);
  EXPECT_EQ(Of(std::vector<uint8_t>(32, 0xff)), 0x62a8ab43u);
  std::vector<uint8_t> bytes(32);
  std::iota(bytes.begin(), bytes.end(), 0);
  EXPECT_EQ(Of(bytes), 0x46dd794eu);
  const std::string digits = "123456789";
  EXPECT_EQ(GetParam()(0, digits.data(), digits.size()), 0xe3069283u);
  EXPECT_EQ(Of({}), 0u);
}

TEST_P(Crc32cTest, ExtendsFromAnyPlace) {
  std::vector<uint8_t> bytes(100);
  std::iota(bytes.begin(), bytes.end(), 7);
  const uint32_t whole = ExtendCrc32cPortably(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t first = GetParam()(0, bytes.data(), cut);
    EXPECT_EQ(GetParam()(first, bytes.data() + cut, bytes.size() - cut), whole)
        << cut;
  }
}

TEST_P(Crc32cTest, OfManyBytesIsThatOfTheTable) {
  std::vector<uint8_t> bytes(100003);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = (i * i) >> 3;
  for (const size_t size : {24575, 24576, 24577, 49152, 100003}) {
    EXPECT_EQ(GetParam()(9, bytes.data(), size),
              ExtendCrc32cPortably(9, bytes.data(), size))
        << size;
  }
}

TEST(CombineCrc32cTest, IsTheCrcOfBothTogether) {
  std::vector<uint8_t> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = (i * i) >> 3;
  const uint32_t whole = ExtendCrc32c(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); cut += 125) {
    const size_t rest = bytes.size() - cut;
    EXPECT_EQ(CombineCrc32c(ExtendCrc32c(0, bytes.data(), cut),
                            ExtendCrc32c(0, bytes.data() + cut, rest), rest),
              whole)
        << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Crc32cTest,
                         testing::Values(&ExtendCrc32c, &ExtendCrc32cPortably));

}  // namespace
}  // namespace tf_ext

// SPDX-License-Identifier: Apache-2.0
#include "cc/core/hashing/fingerprint.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/hashing/hash_strings.h"
#include "cc/core/support/simd_test_util.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// A text of `size` bytes, the same everywhere and for ever.
std::string PatternText(size_t size) {
  std::string text(size, '\0');
  uint32_t state = 1;
  for (char& c : text) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

struct Vector {
  std::string text;
  int64_t fingerprint;
};

TEST(FingerprintTest, DocumentedVectors) {
  const std::vector<Vector> vectors = {
      // BigQuery's reference of FARM_FINGERPRINT.
      {"1footrue", -1541654101129638711},
      {"2applefalse", 2794438866806483259},
      {"3true", -4880158226897771312},
      // Amazon Redshift's reference of farmFingerprint64.
      {"Amazon Redshift", 8085098817162212970},
  };
  for (const Vector& v : vectors) {
    EXPECT_EQ(static_cast<int64_t>(Fingerprint64(v.text)), v.fingerprint)
        << v.text;
  }
}

TEST(FingerprintTest, EmptyText) {
  EXPECT_EQ(Fingerprint64(nullptr, 0), 0x9ae16a3b2f90404fu);
  EXPECT_EQ(Fingerprint64(""), 0x9ae16a3b2f90404fu);
}

// The Python tests compare every length with TensorFlow; here one number
// stands for all of them.
TEST(FingerprintTest, EveryLengthUpTo1024) {
  uint64_t sum = 0;
  for (size_t size = 0; size <= 1024; ++size) {
    sum = sum * 0x100000001b3u + Fingerprint64(PatternText(size));
  }
  EXPECT_EQ(sum, 0x217264457689fd1fu);
}

TEST(FingerprintTest, AlignmentDoesNotMatter) {
  for (size_t size : {1, 5, 12, 30, 60, 64, 65, 128, 129, 1000}) {
    const std::string text = PatternText(size);
    for (size_t offset = 1; offset < 8; ++offset) {
      const std::string shifted = std::string(offset, 'x') + text;
      EXPECT_EQ(Fingerprint64(shifted.data() + offset, size),
                Fingerprint64(text))
          << "size " << size << ", offset " << offset;
    }
  }
}

// All ways in which words can lie in the prefix, in the text or across both.
TEST(FingerprintTest, PrefixAndTextAreAsOneText) {
  for (size_t size = 0; size <= 200; ++size) {
    const std::string text = PatternText(size);
    for (size_t prefix_size = 0; prefix_size <= size; ++prefix_size) {
      const PrefixFingerprint fingerprint(text.substr(0, prefix_size));
      // A copy of its own, so that a sanitizer sees every byte too many.
      const std::vector<char> rest(text.begin() + prefix_size, text.end());
      const std::string_view view(rest.data(), rest.size());
      int64_t result = 0;
      fingerprint.Fingerprints(&view, 1, &result);
      ASSERT_EQ(static_cast<uint64_t>(result), Fingerprint64(text))
          << "size " << size << ", prefix " << prefix_size;
    }
  }
}

TEST(FingerprintTest, ManyTextsOfOnePrefix) {
  const PrefixFingerprint fingerprint("user");
  EXPECT_EQ(fingerprint.prefix(), "user");
  const std::string long_text = PatternText(600);
  const std::vector<std::string_view> texts = {"a", long_text, "", long_text};
  std::vector<int64_t> results(texts.size());
  fingerprint.Fingerprints(texts.data(), texts.size(), results.data());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(static_cast<uint64_t>(results[i]),
              Fingerprint64("user" + std::string(texts[i])));
  }
}

// One by one and, where the instruction set has a use for it, as words.
TEST(FingerprintTest, TextsOfAllSizesTogether) {
  for (const SimdLevel level : SimdLevels()) {
    const ScopedSimdLevel scoped(level);
    for (const size_t prefix_size : {0, 1, 3, 7, 8, 9, 15, 16, 24, 33, 70}) {
      const std::string prefix = PatternText(prefix_size);
      const PrefixFingerprint fingerprint(prefix);
      // Copies of their own, so that a sanitizer sees every byte too many.
      std::vector<std::vector<char>> copies;
      std::vector<std::string_view> texts;
      for (size_t i = 0; i < 1000; ++i) {
        const std::string text = PatternText(prefix_size + i % 77);
        copies.emplace_back(text.begin() + prefix_size, text.end());
        texts.emplace_back(copies.back().data(), copies.back().size());
      }
      std::vector<int64_t> results(texts.size());
      fingerprint.Fingerprints(texts.data(), texts.size(), results.data());
      for (size_t i = 0; i < texts.size(); ++i) {
        ASSERT_EQ(static_cast<uint64_t>(results[i]),
                  Fingerprint64(prefix + std::string(texts[i])))
            << SimdLevelName(level) << ", prefix " << prefix_size << ", text "
            << texts[i].size();
      }
      const size_t most = fingerprint.MostOfWords();
      for (size_t i = 0; i < texts.size(); ++i) {
        TextWords words;
        if (!ReadWordsOf<std::string_view>(texts.data(), i, 1, most, &words)) {
          continue;
        }
        int64_t result = 0;
        fingerprint.OfWords(&words, 1, &result);
        ASSERT_EQ(result, results[i])
            << "prefix " << prefix_size << ", text " << texts[i].size();
      }
    }
  }
}

TEST(FingerprintTest, NulBytesCount) {
  EXPECT_NE(Fingerprint64(std::string("a\0", 2)), Fingerprint64("a"));
  EXPECT_NE(Fingerprint64(std::string("\0", 1)),
            Fingerprint64(std::string("\0\0", 2)));
}

}  // namespace
}  // namespace tf_ext

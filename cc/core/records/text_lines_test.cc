// SPDX-License-Identifier: Apache-2.0
#include "cc/core/records/text_lines.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace tf_ext {
namespace {

using Indices = std::vector<int64_t>;

TEST(TextLinesTest, EndsAreFoundAtEachPlaceOfAChunk) {
  for (size_t size = 0; size < 140; ++size) {
    for (size_t at = 0; at < size; ++at) {
      std::string text(size, '\x8a');  // A line feed but for the highest bit.
      text[at] = '\n';
      EXPECT_EQ(LineEnds(text), Indices{static_cast<int64_t>(at)});
    }
    EXPECT_EQ(LineEnds(std::string(size, '\v')), Indices());
    EXPECT_EQ(LineEnds(std::string(size, '\n')).size(), size);
    EXPECT_EQ(CountLines(std::string(size, '\n')), static_cast<int64_t>(size));
  }
}

TEST(TextLinesTest, LinesWithOddQuotes) {
  EXPECT_EQ(LinesWithOddQuotes(""), Indices());
  EXPECT_EQ(LinesWithOddQuotes("\"a\n\"\"\nb\"\"\"\n\n\"\"\"\""),
            Indices({0, 2}));
  EXPECT_EQ(LinesWithOddQuotes("a\n\""), Indices());
}

Indices Wrong(std::string_view text) {
  const Indices ends = LineEnds(text);
  return WronglyQuoted(text, ends.data(), ends.size(), ',');
}

TEST(TextLinesTest, QuotesOpenAndCloseFields) {
  for (const char* good :
       {"", "\n", "a,b\n", "\"\"\n", "\"a\",\"b\"\n", "\"a\",b,\"c\"\r\n",
        "\"a\"\"b\"\n", "\"\"\"\"\n", "1,\"a,b\"\n"}) {
    EXPECT_EQ(Wrong(good), Indices()) << good;
  }
  for (const char* bad : {"\"\n", "a\"\n", "a\"b\"\n", "\"a\"b\n", "\"a\"\rb\n",
                          "\"a\" ,b\n", "\"\"\"\n", ",\"\"a\"\n", ";\"a\"\n"}) {
    EXPECT_EQ(Wrong(bad), Indices({0})) << bad;
    const std::string within = "\"x\"\n" + std::string(bad) + "\"y\"\n";
    EXPECT_EQ(Wrong(within), Indices({1})) << bad;
  }
}

TEST(TextLinesTest, RecordsMayHaveLineFeeds) {
  const std::string text = "\"a\n\"\"b\"\nc\"\n\"d\"\n";
  const Indices ends = {7, 10, 14};
  EXPECT_EQ(WronglyQuoted(text, ends.data(), ends.size(), ','), Indices({1}));
  // What follows the last end is of no record.
  EXPECT_EQ(WronglyQuoted(text, ends.data(), 1, ','), Indices());
  EXPECT_EQ(WronglyQuoted("\"", nullptr, 0, ','), Indices());
}

TEST(TextLinesTest, EndsThatDoNotRiseAreNotUsedAsPlaces) {
  const Indices ends = {150, 3, -1, 1000};
  EXPECT_LE(WronglyQuoted(std::string(200, '"'), ends.data(), ends.size(), ',')
                .size(),
            ends.size());
}

TEST(TextLinesTest, LongTextsOfRightQuotes) {
  std::mt19937 rng(2);
  const std::vector<std::string> fields = {"",         "a",
                                           "\"\"",     "\"a,b\"",
                                           "\"\"\"\"", "\"a\"\"b\n\"",
                                           "\"\n\n\"", std::string(70, 'a')};
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::string text;
    Indices ends;
    for (int record = 0; record < 20; ++record) {
      for (int field = rng() % 4; field > 0; --field) {
        text += fields[rng() % fields.size()] + ",";
      }
      text += fields[rng() % fields.size()];
      if (rng() % 2 == 0) text += "\r";
      ends.push_back(text.size());
      text += "\n";
    }
    EXPECT_EQ(WronglyQuoted(text, ends.data(), ends.size(), ','), Indices());
    // One that is missing is noticed in its record.
    const size_t lost = text.find('"', rng() % text.size());
    if (lost == std::string::npos) continue;
    text[lost] = 'x';
    const auto record = std::lower_bound(ends.begin(), ends.end(), lost);
    EXPECT_EQ(WronglyQuoted(text, ends.data(), ends.size(), ','),
              Indices{record - ends.begin()});
  }
}

TEST(TextLinesTest, AgreesWithBytesOneByOne) {
  std::mt19937 rng(1);
  const std::string_view bytes = "\",\n\r ab";
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::string text(rng() % 200, ' ');
    for (char& c : text) c = bytes[rng() % bytes.size()];
    text += '\n';
    Indices ends, odd, wrong;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      bool open = false, bad = false;
      for (size_t at = begin; at < end; ++at) {
        if (text[at] != '"') continue;
        const char before = at > begin ? text[at - 1] : '\n';
        std::string after = text.substr(at + 1, 2);
        if (after[0] != '\r') after.resize(1);
        bad |= open ? after != "\"" && after != "," && after != "\n" &&
                          after != "\r\n"
                    : before != '"' && before != ',' && before != '\n';
        open = !open;
      }
      if (open) odd.push_back(ends.size());
      if (open || bad) wrong.push_back(ends.size());
      ends.push_back(end);
      begin = end + 1;
    }
    EXPECT_EQ(LineEnds(text), ends);
    EXPECT_EQ(CountLines(text), static_cast<int64_t>(ends.size()));
    EXPECT_EQ(LinesWithOddQuotes(text), odd);
    EXPECT_EQ(Wrong(text), wrong) << text;
  }
}

}  // namespace
}  // namespace tf_ext

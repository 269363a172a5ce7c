// SPDX-License-Identifier: Apache-2.0
#include "cc/core/records/text_lines.h"

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tf_ext {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101;
constexpr uint64_t kLowBits = 0x7f * kOnes;
constexpr size_t kWord = sizeof(uint64_t);

// The highest bit of each byte of a word that is `c`.
uint64_t Matches(uint64_t word, char c) {
  const uint64_t differs = word ^ (kOnes * static_cast<uint8_t>(c));
  return ~(((differs & kLowBits) + kLowBits) | differs | kLowBits);
}

// Calls fn(place) for each byte that is a or b.
template <typename Fn>
void ForEach(std::string_view text, char a, char b, const Fn& fn) {
  size_t at = 0;
  for (; at + kWord <= text.size(); at += kWord) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, kWord);
    uint64_t found = Matches(word, a) | Matches(word, b);
    for (; found != 0; found &= found - 1) {
      fn(at + __builtin_ctzll(found) / 8);
    }
  }
  for (; at < text.size(); ++at) {
    if (text[at] == a || text[at] == b) fn(at);
  }
}

bool Opens(std::string_view text, size_t quote, char separator) {
  const char before = quote > 0 ? text[quote - 1] : '\n';
  return before == '"' || before == separator || before == '\n';
}

bool Closes(std::string_view text, size_t quote, char separator) {
  const auto byte = [text](size_t at) {
    return at < text.size() ? text[at] : '\n';
  };
  const char after = byte(quote + 1);
  return after == '"' || after == separator || after == '\n' ||
         (after == '\r' && byte(quote + 2) == '\n');
}

}  // namespace

std::vector<int64_t> LineEnds(std::string_view text) {
  std::vector<int64_t> ends;
  ForEach(text, '\n', '\n', [&](size_t at) { ends.push_back(at); });
  return ends;
}

std::vector<int64_t> LinesWithOddQuotes(std::string_view text) {
  std::vector<int64_t> lines;
  int64_t line = 0;
  bool odd = false;
  ForEach(text, '"', '\n', [&](size_t at) {
    if (text[at] == '"') {
      odd = !odd;
      return;
    }
    if (odd) lines.push_back(line);
    ++line;
    odd = false;
  });
  return lines;
}

std::vector<int64_t> WronglyQuoted(std::string_view text, const int64_t* ends,
                                   int64_t n, char separator) {
  std::vector<int64_t> wrong;
  int64_t record = 0;
  bool open = false, bad = false;
  const auto end_record = [&] {
    if (bad || open) wrong.push_back(record);
    ++record;
    open = bad = false;
  };
  ForEach(text, '"', '"', [&](size_t at) {
    while (record < n && ends[record] < static_cast<int64_t>(at)) end_record();
    bad |= open ? !Closes(text, at, separator) : !Opens(text, at, separator);
    open = !open;
  });
  while (record < n) end_record();
  return wrong;
}

}  // namespace tf_ext

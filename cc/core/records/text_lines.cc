// SPDX-License-Identifier: Apache-2.0
#include "cc/core/records/text_lines.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tf_ext {
namespace {

constexpr size_t kChunk = 64;

// The bits of the bytes of a chunk that are `c`.
uint64_t Matches(const char* chunk, char c) {
  uint64_t found = 0;
#ifdef __SSE2__
  const __m128i wanted = _mm_set1_epi8(c);
  for (size_t at = 0; at < kChunk; at += sizeof(__m128i)) {
    const __m128i bytes =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(chunk + at));
    const uint32_t bits = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, wanted));
    found |= uint64_t{bits} << at;
  }
#else
  for (size_t at = 0; at < kChunk; ++at) {
    found |= uint64_t{chunk[at] == c} << at;
  }
#endif
  return found;
}

// Calls fn(begin, chunk) for each 64 bytes of a text. Behind its end are zeros.
template <typename Fn>
void ForEachChunk(std::string_view text, const Fn& fn) {
  size_t begin = 0;
  for (; begin + kChunk <= text.size(); begin += kChunk) {
    fn(begin, text.data() + begin);
  }
  if (begin == text.size()) return;
  char last[kChunk] = {};
  std::memcpy(last, text.data() + begin, text.size() - begin);
  fn(begin, last);
}

// Calls fn(place) for each bit that is set.
template <typename Fn>
void ForEachBit(uint64_t bits, const Fn& fn) {
  for (; bits != 0; bits &= bits - 1) fn(__builtin_ctzll(bits));
}

// Whether the quotes up to each byte of a chunk, with itself, are odd in
// number. is_odd: that of the chunks before; becomes that of this one, too.
uint64_t OddQuotes(uint64_t quotes, bool* is_odd) {
  uint64_t odd = quotes;
  for (int shift = 1; shift < 64; shift *= 2) odd ^= odd << shift;
  if (*is_odd) odd = ~odd;
  *is_odd = odd >> 63;
  return odd;
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

// Whether quotes open and close fields by turns in the whole text, and all
// records end outside of them.
bool AllRightlyQuoted(std::string_view text, const int64_t* ends, int64_t n,
                      char separator) {
  bool right = true, is_odd = false;
  int64_t record = 0;
  ForEachChunk(text, [&](size_t begin, const char* chunk) {
    const uint64_t quotes = Matches(chunk, '"');
    const uint64_t odd = OddQuotes(quotes, &is_odd);
    // Of most quotes the neighbour in the chunk tells it.
    const uint64_t bounds =
        quotes | Matches(chunk, separator) | Matches(chunk, '\n');
    ForEachBit(quotes & odd & ~(bounds << 1),
               [&](size_t at) { right &= Opens(text, begin + at, separator); });
    ForEachBit(quotes & ~odd & ~(bounds >> 1), [&](size_t at) {
      right &= Closes(text, begin + at, separator);
    });
    const int64_t first = begin, next = first + kChunk;
    for (; record < n && ends[record] < next; ++record) {
      right &= ends[record] >= first && !(odd >> (ends[record] - first) & 1);
    }
  });
  return right;
}

}  // namespace

int64_t CountLines(std::string_view text) {
  int64_t count = 0;
  ForEachChunk(text, [&](size_t, const char* chunk) {
    count += __builtin_popcountll(Matches(chunk, '\n'));
  });
  return count;
}

std::vector<int64_t> LineEnds(std::string_view text) {
  std::vector<int64_t> ends;
  ForEachChunk(text, [&](size_t begin, const char* chunk) {
    ForEachBit(Matches(chunk, '\n'),
               [&](size_t at) { ends.push_back(begin + at); });
  });
  return ends;
}

std::vector<int64_t> LinesWithOddQuotes(std::string_view text) {
  std::vector<int64_t> lines;
  int64_t line = 0;
  bool is_odd = false, was_odd = false;  // At the end of the line before.
  ForEachChunk(text, [&](size_t, const char* chunk) {
    const uint64_t odd = OddQuotes(Matches(chunk, '"'), &is_odd);
    ForEachBit(Matches(chunk, '\n'), [&](size_t at) {
      const bool ends_odd = odd >> at & 1;
      if (ends_odd != was_odd) lines.push_back(line);
      was_odd = ends_odd;
      ++line;
    });
  });
  return lines;
}

std::vector<int64_t> WronglyQuoted(std::string_view text, const int64_t* ends,
                                   int64_t n, char separator) {
  std::vector<int64_t> wrong;
  if (AllRightlyQuoted(text, ends, n, separator)) return wrong;
  int64_t record = 0;
  bool open = false, bad = false;
  const auto end_record = [&] {
    if (bad || open) wrong.push_back(record);
    ++record;
    open = bad = false;
  };
  ForEachChunk(text, [&](size_t begin, const char* chunk) {
    ForEachBit(Matches(chunk, '"'), [&](size_t place) {
      const size_t at = begin + place;
      while (record < n && ends[record] < static_cast<int64_t>(at)) {
        end_record();
      }
      bad |= open ? !Closes(text, at, separator) : !Opens(text, at, separator);
      open = !open;
    });
  });
  while (record < n) end_record();
  return wrong;
}

}  // namespace tf_ext

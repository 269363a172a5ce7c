// SPDX-License-Identifier: Apache-2.0
// What is read of signs without a row: `unknown` of a table's configuration.
//
// Shared rows are ordinary rows of the table under signs that are reserved for
// them, so that all of storage and transport carries them. Which of them a sign
// shares is the rest of a division, so that every reader can compute it. The
// sign and its shared row may be in different shards: a pull reads NaN for
// signs without a row, and whoever gathers rows from all shards puts the shared
// ones in their place. Whatever flows back goes to the row that was read.
#ifndef TF_EXT_CC_CORE_TABLE_UNKNOWN_ROWS_H_
#define TF_EXT_CC_CORE_TABLE_UNKNOWN_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/support/status.h"
#include "cc/core/table/config_lines.h"

namespace tf_ext {

// The sign of the first shared row; the others follow. Any number that neither
// hashes nor ids are likely to be.
inline constexpr int64_t kFirstSharedSign = 0x6b1d9f3ae2000000;
inline constexpr int64_t kMostSharedRows = int64_t{1} << 20;

struct UnknownRows {
  enum class Kind { kInitial, kZeros, kVector, kShared };

  // Reads the lines `unknown` and "unknown.<key>", writes them, and checks what
  // they say for rows of `dim` weights.
  Status Read(Lines* lines);
  void Write(std::map<std::string, std::string>* lines) const;
  Status Check(int64_t dim) const;

  bool is_shared() const { return kind == Kind::kShared; }
  // Whether the sign is that of a shared row.
  bool IsShared(int64_t sign) const {
    return static_cast<uint64_t>(sign) -
               static_cast<uint64_t>(kFirstSharedSign) <
           static_cast<uint64_t>(buckets);
  }
  // The sign of the row that the sign shares, if there are shared rows; of a
  // shared row its own.
  int64_t SharedSignOf(int64_t sign) const {
    if (IsShared(sign)) return sign;
    const int64_t rest = sign % buckets;
    return kFirstSharedSign + (rest < 0 ? rest + buckets : rest);
  }

  Kind kind = Kind::kInitial;
  std::vector<float> vector;  // of kVector, `dim` values
  int64_t buckets = 0;        // of kShared, 1 ... kMostSharedRows
};

// The weights of shared rows before a push, from which new rows start: their
// signs read them.
class StartRows {
 public:
  StartRows() = default;
  // rows: [n, dim], which must outlive this. May throw std::bad_alloc.
  StartRows(const int64_t* signs, const float* rows, int64_t n, int64_t dim) {
    starts_.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      starts_.emplace_back(signs[i], rows + i * dim);
    }
    std::sort(starts_.begin(), starts_.end());
  }

  // nullptr: there is none of that sign.
  const float* Find(int64_t shared_sign) const {
    const auto it = std::lower_bound(
        starts_.begin(), starts_.end(), shared_sign,
        [](const auto& start, int64_t sign) { return start.first < sign; });
    const bool found = it != starts_.end() && it->first == shared_sign;
    return found ? it->second : nullptr;
  }

 private:
  std::vector<std::pair<int64_t, const float*>> starts_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_UNKNOWN_ROWS_H_

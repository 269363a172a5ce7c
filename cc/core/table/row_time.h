// SPDX-License-Identifier: Apache-2.0
// The time of a row's last push: the field `last_seen`.
//
// An int32 in the unit of the table: the step of the push, or its time in
// seconds since 2020-01-01 00:00 UTC, which can be represented until 2088.
// Times outside the range of the field are clamped to it. Beyond the end of the
// range, all rows get the same time, so none is evicted because of its age.
//
// Time can go backwards: servers receive steps out of order, clocks are
// adjusted, a model is trained again from step 0. A push never makes a row
// older. The age of a row is unknown if the row was never pushed (kNeverSeen:
// it was imported, or pulled but not pushed), or if it is newer than both "now"
// and the table's last push. Such a row starts to age at the first eviction
// that encounters it. So after a clock was wrong, no row is evicted too early
// and none is kept forever. A row that is pushed while an eviction runs may be
// newer than the eviction's "now", but not than the last push, and keeps its
// time.
#ifndef TF_EXT_CC_CORE_TABLE_ROW_TIME_H_
#define TF_EXT_CC_CORE_TABLE_ROW_TIME_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/core/table/config.h"

namespace tf_ext {

inline constexpr int32_t kNeverSeen = -1;

// 2020-01-01 00:00 UTC.
inline constexpr int64_t kSecondsEpoch = 1577836800;

// Converts a step, or a time in seconds since 1970, to a value of the field.
inline int32_t ToRowTime(LastSeen unit, int64_t time) {
  if (unit == LastSeen::kSecond) {
    time = time < kSecondsEpoch ? 0 : time - kSecondsEpoch;
  }
  return static_cast<int32_t>(std::clamp<int64_t>(time, 0, INT32_MAX));
}

// Accesses the field in the rows of a table; `offset` is 0 if they have none.
class RowTime {
 public:
  RowTime() = default;
  explicit RowTime(int64_t offset) : offset_(offset) {}

  bool there() const { return offset_ != 0; }

  int32_t Get(const uint8_t* row) const {
    int32_t time;
    std::memcpy(&time, row + offset_, sizeof(time));
    return time;
  }
  void Set(uint8_t* row, int32_t time) const {
    std::memcpy(row + offset_, &time, sizeof(time));
  }
  // Records a push at `now`.
  void See(uint8_t* row, int32_t now) const {
    Set(row, std::max(Get(row), now));
  }
  // The time of the row's last push, or, if its age is unknown, `latest`, which
  // is the later of now and the last push.
  int32_t At(const uint8_t* row, int32_t latest) const {
    const int32_t time = Get(row);
    return time >= 0 && time <= latest ? time : latest;
  }

 private:
  int64_t offset_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_ROW_TIME_H_

// SPDX-License-Identifier: Apache-2.0
// What moves the absent rows of a table of some configuration.
#ifndef TF_EXT_CC_CORE_TABLE_TABLE_ABSENT_H_
#define TF_EXT_CC_CORE_TABLE_TABLE_ABSENT_H_

#include <memory>

#include "cc/core/rules/absent_rows.h"
#include "cc/core/table/config.h"
#include "cc/core/table/row_layout.h"

namespace tf_ext {

// nullptr if they stay where they are. May throw std::bad_alloc.
inline std::unique_ptr<AbsentRows> MakeAbsentRows(const TableConfig& config,
                                                  const RowLayout& layout) {
  if (!config.moves_absent_rows()) return nullptr;
  const auto field = [&layout](const char* name) -> AbsentFields::Moved {
    const Field* const found = layout.Find(name);
    return {found->type, found->offset};
  };
  const AbsentFields fields = {field(layout.fields()[0].name.c_str()),
                               field("m"), field("v"),
                               layout.Find(kCaughtUpField)->offset};
  return std::make_unique<AbsentRows>(
      config.rule.spec().absent(config.rule), config.dim, fields,
      layout.narrow(RoundingStream(config.seed, config.name)));
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_TABLE_ABSENT_H_

// SPDX-License-Identifier: Apache-2.0
// Lines of text, and the quotes of CSV in them (RFC 4180).
#ifndef TF_EXT_CC_CORE_RECORDS_TEXT_LINES_H_
#define TF_EXT_CC_CORE_RECORDS_TEXT_LINES_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace tf_ext {

// The number of line feeds.
int64_t CountLines(std::string_view text);

// The places of the line feeds.
std::vector<int64_t> LineEnds(std::string_view text);

// The indices of the lines with an odd number of quotes. What follows the last
// line feed is no line.
std::vector<int64_t> LinesWithOddQuotes(std::string_view text);

// The indices of the records whose quotes do not open and close fields by
// turns. A quote opens a field behind a separator or line feed, or where the
// text begins, and closes one before them or the carriage return of a line end.
// Two quotes in a row, which are one of the value, do both.
//
// ends: n line feeds that end the records, which rise.
std::vector<int64_t> WronglyQuoted(std::string_view text, const int64_t* ends,
                                   int64_t n, char separator);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RECORDS_TEXT_LINES_H_

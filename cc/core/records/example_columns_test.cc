// SPDX-License-Identifier: Apache-2.0
#include "cc/core/records/example_columns.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/records/record_block.h"
#include "cc/core/snapshot/crc32c.h"
#include "gtest/gtest.h"

namespace tf_ext {
namespace {

// A field of bytes.
std::string Bytes(int number, const std::string& value) {
  std::string head = {static_cast<char>(number << 3 | 2)};
  size_t size = value.size();
  for (; size >= 128; size /= 128) head += static_cast<char>(0x80 | size % 128);
  head += static_cast<char>(size);
  return head + value;
}

std::string Entry(const std::string& name, int kind, const std::string& list) {
  return Bytes(1, Bytes(1, name) + Bytes(2, Bytes(kind, list)));
}

std::string Example(const std::string& entries) { return Bytes(1, entries); }

const char kHalf[] = "\0\0\0\x3f";  // 0.5f

std::string Half() { return std::string(kHalf, 4); }

std::vector<ExampleField> Fields() {
  return {{"text", ValueKind::kBytes, false},
          {"number", ValueKind::kInt64, false},
          {"price", ValueKind::kFloat, false},
          {"tags", ValueKind::kBytes, true},
          {"weights", ValueKind::kFloat, true}};
}

std::string Full() {
  return Example(
      Entry("text", 1, Bytes(1, "abc")) + Entry("number", 3, Bytes(1, "\x05")) +
      Entry("price", 2, Bytes(1, Half())) +
      Entry("tags", 1, Bytes(1, "x") + Bytes(1, "")) +
      Entry("other", 1, Bytes(1, "y")) +
      // Not packed: a field for each value.
      Entry("weights", 2, std::string("\x0d") + Half() + "\x0d" + Half()));
}

void ExpectConsistent(const ExampleColumns& columns, size_t rows) {
  for (size_t i = 0; i < columns.fields().size(); ++i) {
    const ExampleField& field = columns.fields()[i];
    const ExampleColumn& column = columns.columns()[i];
    size_t values = column.floats.size() + column.ints.size();
    if (field.kind == ValueKind::kBytes) {
      values = column.ends.size() - 1;
      EXPECT_EQ(column.ends.back(), column.text.size());
    }
    if (field.bag) {
      ASSERT_EQ(column.splits.size(), rows + 1);
      EXPECT_EQ(column.splits.back(), values);
    } else {
      ASSERT_EQ(column.given.size(), rows);
      EXPECT_EQ(values, rows);
    }
  }
}

TEST(ExampleColumns, AppendsValuesAndWhatIsMissing) {
  ExampleColumns columns(Fields());
  EXPECT_EQ(columns.Append(Full()), ExampleError::kNone);
  EXPECT_EQ(columns.Append(""), ExampleError::kNone);
  // An integer for a float, in another order; an empty list is missing.
  EXPECT_EQ(columns.Append(Example(Entry("price", 3, Bytes(1, "\x07")) +
                                   Entry("text", 3, ""))),
            ExampleError::kNone);
  ExpectConsistent(columns, 3);
  const auto& found = columns.columns();
  EXPECT_EQ(found[0].text, "abc");
  EXPECT_EQ(found[0].given, (std::vector<uint8_t>{1, 0, 0}));
  EXPECT_EQ(found[1].ints, (std::vector<int64_t>{5, 0, 0}));
  EXPECT_EQ(found[2].floats, (std::vector<float>{0.5f, 0.0f, 7.0f}));
  EXPECT_EQ(found[2].given, (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(found[3].ends, (std::vector<int32_t>{0, 1, 1}));
  EXPECT_EQ(found[3].splits, (std::vector<int32_t>{0, 2, 2, 2}));
  EXPECT_EQ(found[4].floats, (std::vector<float>{0.5f, 0.5f}));
}

TEST(ExampleColumns, RefusesWholeExamples) {
  ExampleColumns columns(Fields());
  EXPECT_EQ(columns.Append(Example(Entry("number", 1, Bytes(1, "x")))),
            ExampleError::kKind);
  EXPECT_EQ(columns.Append(Example(Entry("number", 2, Bytes(1, Half())))),
            ExampleError::kKind);
  EXPECT_EQ(columns.Append(Example(Entry("number", 3, Bytes(1, "\1\2")))),
            ExampleError::kSeveralValues);
  EXPECT_EQ(columns.Append(Example(Entry("price", 2, Bytes(1, "\1\2\3")))),
            ExampleError::kMessage);
  EXPECT_EQ(columns.Append("\xff"), ExampleError::kMessage);
  ExpectConsistent(columns, 0);
}

TEST(ExampleColumns, TakesTheLastOfSeveralWithAName) {
  ExampleColumns columns(Fields());
  EXPECT_EQ(columns.Append(Example(Entry("number", 3, Bytes(1, "\x05")) +
                                   Entry("number", 3, Bytes(1, "\x06")))),
            ExampleError::kNone);
  EXPECT_EQ(columns.columns()[1].ints, std::vector<int64_t>{6});
}

TEST(ExampleColumns, SurvivesCutAndFlippedBytes) {
  ExampleColumns columns(Fields());
  const std::string whole = Full();
  size_t rows = 0;
  for (size_t size = 1; size < whole.size(); ++size) {
    EXPECT_EQ(columns.Append(whole.substr(0, size)), ExampleError::kMessage);
  }
  std::mt19937 random;
  for (int i = 0; i < 20000; ++i) {
    std::string data = whole;
    data[random() % data.size()] = static_cast<char>(random());
    rows += columns.Append(data) == ExampleError::kNone;
  }
  EXPECT_GT(rows, 1000);
  ExpectConsistent(columns, rows);
}

// Fields of which examples know nothing, of each wire type but groups.
std::string Unknown(int number) {
  const auto tag = [number](int type) {
    return std::string{static_cast<char>(number << 3 | type)};
  };
  return tag(0) + "\xff\x01" + tag(1) + "8 bytes." + Bytes(number, "\xff") +
         tag(5) + "four";
}

TEST(ExampleColumns, PassesOverUnknownFields) {
  ExampleColumns columns(Fields());
  const std::string unknown = Unknown(4);
  const std::string list = unknown + "\x08\x05" + unknown;
  const std::string feature = unknown + Bytes(3, list) + unknown;
  const std::string entry =
      unknown + Bytes(1, "number") + Bytes(2, feature) + unknown;
  const std::string features = unknown + Bytes(1, entry) + unknown;
  EXPECT_EQ(columns.Append(Unknown(2) + Bytes(1, features) + Unknown(15)),
            ExampleError::kNone);
  EXPECT_EQ(columns.columns()[1].ints, std::vector<int64_t>{5});
  // Cut within the value, and a group.
  for (const char* bad : {"\x20", "\x20\xff", "\x21seven..", "\x22\x02x",
                          "\x25six", "\x23", "\x24", "\x26", "\x27"}) {
    for (const std::string& example :
         {std::string(bad), Example(bad), Example(Bytes(1, bad)),
          Example(Bytes(1, Bytes(1, "number") + Bytes(2, bad))),
          Example(Entry("number", 3, bad))}) {
      EXPECT_EQ(columns.Append(example), ExampleError::kMessage) << bad;
    }
  }
  ExpectConsistent(columns, 1);
}

TEST(ExampleColumns, IntegersOfAllSizes) {
  ExampleColumns columns(Fields());
  const std::string most = std::string(9, '\xff') + "\x01";
  // In a packed list, and as a field.
  for (const std::string& list :
       {Bytes(1, most), "\x08" + most, std::string("\x08\x80\x01"),
        std::string("\x08\x7f")}) {
    EXPECT_EQ(columns.Append(Example(Entry("number", 3, list))),
              ExampleError::kNone);
  }
  EXPECT_EQ(columns.columns()[1].ints,
            (std::vector<int64_t>{-1, -1, 128, 127}));
  // An eleventh byte, and none that is the last.
  for (const std::string& integer :
       {std::string(10, '\xff') + "\x01", std::string("\xff")}) {
    for (const std::string& list : {Bytes(1, integer), "\x08" + integer}) {
      EXPECT_EQ(columns.Append(Example(Entry("number", 3, list))),
                ExampleError::kMessage);
    }
  }
}

TEST(ExampleColumns, RefusesTagsThatNoFieldHas) {
  ExampleColumns columns(Fields());
  // Of field 0, and of more than 32 bits; the greatest has 29 of a number.
  EXPECT_EQ(columns.Append(std::string("\x05zero")), ExampleError::kMessage);
  EXPECT_EQ(columns.Append("\x80\x80\x80\x80\x10\x01"), ExampleError::kMessage);
  EXPECT_EQ(columns.Append("\xf8\xff\xff\xff\x0f\x01"), ExampleError::kNone);
}

TEST(ExampleColumns, RefusesListsOfAnotherWireType) {
  ExampleColumns columns(Fields());
  for (const std::string& entry :
       {Entry("text", 1, "\x08\x05"), Entry("text", 1, "\x0d" + Half()),
        Entry("number", 3, "\x0d" + Half()), Entry("price", 2, "\x08\x05"),
        Bytes(1, "\x0d" + Half()),
        Bytes(1, Bytes(1, "number") + "\x15" + Half()),
        Bytes(1, Bytes(1, "number") + Bytes(2, "\x1d" + Half()))}) {
    EXPECT_EQ(columns.Append(Example(entry)), ExampleError::kMessage);
  }
  EXPECT_EQ(columns.Append("\x08\x05"), ExampleError::kMessage);
  EXPECT_EQ(columns.Append(Bytes(1, "\x08\x05")), ExampleError::kMessage);
  ExpectConsistent(columns, 0);
}

TEST(ExampleColumns, TakesTheLastListOfAFeature) {
  ExampleColumns columns(Fields());
  const std::string feature =
      Bytes(1, Bytes(1, "x")) + Bytes(3, Bytes(1, "\x05"));
  EXPECT_EQ(
      columns.Append(Example(Bytes(1, Bytes(1, "number") + Bytes(2, feature)))),
      ExampleError::kNone);
  EXPECT_EQ(columns.columns()[1].ints, std::vector<int64_t>{5});
}

uint32_t Masked(const std::string& data) {
  const uint32_t crc = ExtendCrc32c(0, data.data(), data.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename T>
std::string Stored(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Record(const std::string& data) {
  const std::string size = Stored<uint64_t>(data.size());
  return size + Stored(Masked(size)) + data + Stored(Masked(data));
}

TEST(SplitRecords, FindsWholeRecords) {
  const std::string block = Record("abc") + Record("") + Record("de");
  for (size_t size = 0; size <= block.size(); ++size) {
    const std::string part = block.substr(0, size);
    const RecordBlock found = SplitRecords(part);
    const size_t records = (size >= 19) + (size >= 35) + (size >= 53);
    ASSERT_EQ(found.begins.size(), records);
    EXPECT_EQ(found.consumed, records == 0   ? 0
                              : records == 1 ? 19
                              : records == 2 ? 35
                                             : 53);
    EXPECT_FALSE(found.damaged);
    for (size_t i = 0; i < records; ++i) {
      EXPECT_TRUE(HasChecksum(part, found.begins[i], found.ends[i]));
    }
  }
  EXPECT_EQ(SplitRecords(block.substr(0, 12)).next_size, 19);
  EXPECT_EQ(SplitRecords(block.substr(0, 11)).next_size, 0);
  EXPECT_EQ(SplitRecords(block).next_size, 0);
}

TEST(SplitRecords, SizesThatNoFileHasAreDamage) {
  for (const auto& [size, damaged] :
       std::vector<std::pair<uint64_t, bool>>{{INT64_MAX - 16, false},
                                              {INT64_MAX - 15, true},
                                              {UINT64_MAX, true}}) {
    const std::string header = Stored(size) + Stored(Masked(Stored(size)));
    const RecordBlock found = SplitRecords(header);
    EXPECT_EQ(found.damaged, damaged) << size;
    EXPECT_EQ(found.next_size, damaged ? 0 : INT64_MAX);
    EXPECT_EQ(found.consumed, 0);
  }
}

TEST(SplitRecords, SeesDamage) {
  const std::string block = Record("abc") + Record("de");
  for (size_t place = 0; place < block.size(); ++place) {
    std::string data = block;
    data[place] ^= 4;
    const RecordBlock found = SplitRecords(data);
    const bool in_first = place < 12, in_second = place >= 19 && place < 31;
    EXPECT_EQ(found.damaged, in_first || in_second) << place;
    EXPECT_EQ(found.begins.size(), in_first ? 0 : in_second ? 1 : 2);
    for (size_t i = 0; i < found.begins.size(); ++i) {
      const bool hit = place >= (i ? 31 : 12) && place < (i ? 37 : 19);
      EXPECT_EQ(HasChecksum(data, found.begins[i], found.ends[i]), !hit);
    }
  }
}

}  // namespace
}  // namespace tf_ext

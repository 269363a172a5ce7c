// SPDX-License-Identifier: Apache-2.0
#include "cc/core/hashing/hash_columns.h"

#include <algorithm>
#include <utility>

#include "cc/core/hashing/hash_part.h"
#include "cc/core/support/message.h"

namespace tf_ext {
namespace {

constexpr char kNamespaceEnd = '\x1f';
constexpr char kPartEnd = '\x1e';

// Work of about a tenth of a millisecond: well above the cost of handing a
// block to a thread.
constexpr int64_t kSignsPerBlock = 4096;
constexpr int64_t kBagsPerBlock = 4096;

// describe() names the input; called only for an error.
template <typename Describe>
Status CheckSplits(const HashInput& input, const Describe& describe) {
  const int64_t* const splits = input.row_splits;
  if (splits[0] != 0) {
    return Invalid("The row_splits of ", describe(),
                   " must start at 0, but start at ", splits[0], ".");
  }
  for (int64_t b = 1; b <= input.batch; ++b) {
    if (splits[b - 1] <= splits[b]) continue;
    return Invalid("The row_splits of ", describe(),
                   " must not decrease, but go from ", splits[b - 1], " to ",
                   splits[b], " at position ", b, ".");
  }
  if (splits[input.batch] == input.n) return Status::Ok();
  return Invalid("The row_splits of ", describe(),
                 " must end at its number of values, which is ", input.n,
                 ", but end at ", splits[input.batch], ".");
}

// The product, or kMaxSignsPerCall + 1 if it is more.
int64_t TimesCount(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kMaxSignsPerCall / b ? kMaxSignsPerCall + 1 : a * b;
}

int64_t Blocks(int64_t n, int64_t per_block) {
  return (n + per_block - 1) / per_block;
}

// Bags [begin, end) of all columns, as fn(column, begin, end) with bags of
// that column.
template <typename Fn>
void ForEachColumn(int64_t begin, int64_t end, int64_t batch, const Fn& fn) {
  while (begin < end) {
    const int64_t column = begin / batch;
    const int64_t column_end = std::min(end, (column + 1) * batch);
    fn(column, begin - column * batch, column_end - column * batch);
    begin = column_end;
  }
}

}  // namespace

// A HashColumn made ready.
class ColumnHasher::Column {
 public:
  Status Init(int64_t index, const HashColumn& column,
              const std::vector<ValueType>& input_types);

  const std::vector<PreparedPart>& parts() const { return parts_; }
  std::string DescribeNamespace() const {
    const std::string_view prefix = fingerprint_.prefix();
    return "the column of namespace " +
           Quoted(prefix.substr(0, prefix.size() - 1));
  }

  // The number of signs of each bag, if all have the same; else -1.
  int64_t CountOfEveryBag(const std::vector<HashInput>& inputs) const;
  // counts[i] is the number of signs of bag begin + i. Numbers are at most
  // kMaxSignsPerCall + 1, which means that or more.
  void CountSigns(const std::vector<HashInput>& inputs, int64_t begin,
                  int64_t end, int64_t* counts) const;

  // The signs of the distinct values of its input, where most occur several
  // times; else nothing.
  std::vector<int64_t> HashDistinct(const std::vector<HashInput>& inputs) const;

  // The signs of bags [begin, end), the first one at signs[0].
  void Hash(const std::vector<HashInput>& inputs, int64_t begin, int64_t end,
            int64_t* signs, float* weights) const;

 private:
  class Crosser;

  Status CheckIdentity(const std::string& name) const;
  void HashOnePart(const HashInput& input, ValueSpan values, int64_t* signs,
                   float* weights) const;

  PrefixFingerprint fingerprint_{{}};  // of the namespace and its end mark
  uint64_t bucket_size_ = 0;           // of a cross; else the part has it
  bool identity_ = false;
  std::vector<PreparedPart> parts_;
};

Status ColumnHasher::Column::Init(int64_t index, const HashColumn& column,
                                  const std::vector<ValueType>& input_types) {
  const std::string name = "Column " + std::to_string(index) + " (namespace " +
                           Quoted(column.ns) + ")";
  const auto num_parts = static_cast<int64_t>(column.parts.size());
  if (num_parts < 1 || num_parts > kMaxCrossParts) {
    return Invalid(name, " has ", num_parts, " parts; 1 to ", kMaxCrossParts,
                   " are allowed.");
  }
  TF_EXT_RETURN_IF_ERROR(CheckBucketSize(name, column.bucket_size));
  fingerprint_ = PrefixFingerprint(column.ns + kNamespaceEnd);
  identity_ = column.identity;
  parts_.resize(num_parts);
  for (int64_t p = 0; p < num_parts; ++p) {
    TF_EXT_RETURN_IF_ERROR(parts_[p].Init(name, column.parts[p], input_types));
  }
  if (num_parts > 1) {
    bucket_size_ = static_cast<uint64_t>(column.bucket_size);
  } else if (parts_[0].bucket_size == 0) {
    parts_[0].bucket_size = static_cast<uint64_t>(column.bucket_size);
  } else {
    return Invalid(name, " has one part, whose bucket_size must be 0, but is ",
                   parts_[0].bucket_size, "; give the column the bucket_size.");
  }
  return CheckIdentity(name);
}

Status ColumnHasher::Column::CheckIdentity(const std::string& name) const {
  const PreparedPart& part = parts_[0];
  const bool integer =
      part.type == ValueType::kInt64 || part.type == ValueType::kInt32;
  if (!identity_ || (integer && parts_.size() == 1 && part.bucket_size == 0 &&
                     part.boundaries.empty())) {
    return Status::Ok();
  }
  return Invalid(name,
                 " takes values as signs (identity), which needs one part of"
                 " type int64 or int32 without bucket_size and boundaries,"
                 " but it has ",
                 parts_.size(), " of type ", TypeName(part.type),
                 ", bucket_size ", part.bucket_size, " and ",
                 part.boundaries.size(), " boundaries.");
}

int64_t ColumnHasher::Column::CountOfEveryBag(
    const std::vector<HashInput>& inputs) const {
  int64_t count = 1;
  for (const PreparedPart& part : parts_) {
    const HashInput& input = inputs[part.input];
    if (part.CanDrop() || input.row_splits != nullptr) return -1;
    count = TimesCount(count, BagSpans(input).Of(0, 1).size());
  }
  return count;
}

void ColumnHasher::Column::CountSigns(const std::vector<HashInput>& inputs,
                                      int64_t begin, int64_t end,
                                      int64_t* counts) const {
  std::fill(counts, counts + (end - begin), 1);
  for (const PreparedPart& part : parts_) {
    const HashInput& input = inputs[part.input];
    const BagSpans spans(input);
    int64_t* count = counts;
    for (int64_t bag = begin; bag < end; ++bag, ++count) {
      const ValueSpan values = spans.Of(bag, bag + 1);
      int64_t present = values.size();
      if (part.CanDrop()) {
        for (int64_t i = values.begin; i < values.end; ++i) {
          present -= part.IsMissing(input, i);
        }
      }
      *count = TimesCount(*count, present);
    }
  }
}

// The Cartesian product of one bag after another.
class ColumnHasher::Column::Crosser {
 public:
  Crosser(const Column& column, const std::vector<HashInput>& inputs,
          int64_t* signs, float* weights)
      : column_(column),
        inputs_(inputs),
        present_(column.parts_.size()),
        signs_(signs),
        weights_(weights) {
    spans_.reserve(column.parts_.size());
    for (const PreparedPart& part : column.parts_) {
      spans_.emplace_back(inputs[part.input]);
    }
  }

  void AddBag(int64_t bag) {
    for (size_t p = 0; p < present_.size(); ++p) {
      const PreparedPart& part = column_.parts_[p];
      const HashInput& input = inputs_[part.input];
      const ValueSpan values = spans_[p].Of(bag, bag + 1);
      present_[p].clear();
      for (int64_t i = values.begin; i < values.end; ++i) {
        if (!part.IsMissing(input, i)) present_[p].push_back(i);
      }
      // Also bounds the work: else the parts before an empty one would be
      // multiplied for nothing.
      if (present_[p].empty()) return;
    }
    Cross(0, 1.0f);
  }

 private:
  // Completes the text with every choice of values of the parts from `p` on.
  void Cross(size_t p, float weight) {
    const PreparedPart& part = column_.parts_[p];
    const HashInput& input = inputs_[part.input];
    const bool last = p + 1 == present_.size();
    const size_t begin = text_.size();
    for (const int64_t i : present_[p]) {
      Decimal decimal;
      text_.append(part.TextAt(input, i, &decimal));
      const float product =
          input.weights == nullptr ? weight : weight * input.weights[i];
      if (last) {
        Emit(product);
      } else {
        text_ += kPartEnd;
        Cross(p + 1, product);
      }
      text_.resize(begin);
    }
  }

  void Emit(float weight) {
    Decimal decimal;
    std::string_view text = text_;
    if (column_.bucket_size_ > 0) {
      text = decimal.WriteBucket(text, column_.bucket_size_);
    }
    column_.fingerprint_.Fingerprints(&text, 1, signs_++);
    if (weights_ != nullptr) *weights_++ = weight;
  }

  const Column& column_;
  const std::vector<HashInput>& inputs_;
  std::vector<BagSpans> spans_;                // by part
  std::vector<std::vector<int64_t>> present_;  // values of the bag, by part
  std::string text_;
  int64_t* signs_;
  float* weights_;
};

void ColumnHasher::Column::HashOnePart(const HashInput& input, ValueSpan values,
                                       int64_t* signs, float* weights) const {
  const PreparedPart& part = parts_[0];
  const bool plain = part.bucket_size == 0 && !part.CanDrop();
  const size_t most_of_words =
      plain && input.read_words != nullptr ? fingerprint_.MostOfWords() : 0;
  TextWords words;
  ValueBatch batch;
  for (int64_t begin = values.begin; begin < values.end;
       begin += ValueBatch::kMaxSize) {
    const int64_t end = std::min(begin + ValueBatch::kMaxSize, values.end);
    batch.Read(part, input, begin, end);
    if (identity_) {
      for (int64_t k = 0; k < batch.size(); ++k) {
        signs[k] = IntegerAt(input, batch.place(k));
      }
    } else if (most_of_words > 0 &&
               input.read_words(input.values, begin, end - begin, most_of_words,
                                &words)) {
      fingerprint_.OfWords(&words, static_cast<int>(end - begin), signs);
    } else {
      fingerprint_.Fingerprints(batch.Texts(part, input), batch.size(), signs);
    }
    signs += batch.size();
    if (weights == nullptr) continue;
    for (int64_t k = 0; k < batch.size(); ++k) {
      *weights++ =
          input.weights == nullptr ? 1.0f : input.weights[batch.place(k)];
    }
  }
}

std::vector<int64_t> ColumnHasher::Column::HashDistinct(
    const std::vector<HashInput>& inputs) const {
  std::vector<int64_t> signs;
  const HashInput& input = inputs[parts_[0].input];
  if (parts_.size() > 1 || input.distinct == nullptr ||
      input.distinct->n > input.n / 2) {
    return signs;
  }
  signs.resize(input.distinct->n);
  HashOnePart(*input.distinct, {0, input.distinct->n}, signs.data(), nullptr);
  return signs;
}

void ColumnHasher::Column::Hash(const std::vector<HashInput>& inputs,
                                int64_t begin, int64_t end, int64_t* signs,
                                float* weights) const {
  if (parts_.size() == 1) {
    const HashInput& input = inputs[parts_[0].input];
    HashOnePart(input, BagSpans(input).Of(begin, end), signs, weights);
    return;
  }
  Crosser crosser(*this, inputs, signs, weights);
  for (int64_t bag = begin; bag < end; ++bag) crosser.AddBag(bag);
}

ColumnHasher::ColumnHasher() = default;
ColumnHasher::~ColumnHasher() = default;

Status ColumnHasher::Create(const std::vector<HashColumn>& columns,
                            const std::vector<ValueType>& input_types,
                            std::unique_ptr<ColumnHasher>* hasher) {
  if (columns.empty()) return Invalid("There must be at least one column.");
  std::unique_ptr<ColumnHasher> result(new ColumnHasher);
  result->input_types_ = input_types;
  result->columns_.resize(columns.size());
  for (size_t c = 0; c < columns.size(); ++c) {
    TF_EXT_RETURN_IF_ERROR(
        result->columns_[c].Init(c, columns[c], input_types));
  }
  *hasher = std::move(result);
  return Status::Ok();
}

int64_t ColumnHasher::num_columns() const {
  return static_cast<int64_t>(columns_.size());
}

// Names a column too: users know that better than the position of an input.
std::string ColumnHasher::DescribeInput(int64_t input) const {
  const std::string name = "input " + std::to_string(input);
  for (const Column& column : columns_) {
    for (const PreparedPart& part : column.parts()) {
      if (part.input == input) {
        return name + " (of " + column.DescribeNamespace() + ")";
      }
    }
  }
  return name;
}

Status ColumnHasher::CheckInputs(const std::vector<HashInput>& inputs,
                                 int64_t* batch) const {
  if (inputs.size() != input_types_.size() || inputs.empty()) {
    return Invalid("There must be ", input_types_.size(),
                   " inputs, and at least 1, but there are ", inputs.size(),
                   ".");
  }
  *batch = inputs[0].batch;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const HashInput& input = inputs[i];
    if (input.type != input_types_[i]) {
      return Invalid("The values of ", DescribeInput(i), " must be of type ",
                     TypeName(input_types_[i]), ", but are of type ",
                     TypeName(input.type), ".");
    }
    if (input.batch != *batch) {
      return Invalid("All inputs must have the same batch size, but ",
                     DescribeInput(i), " has ", input.batch, " and ",
                     DescribeInput(0), " has ", *batch, ".");
    }
    if (input.row_splits != nullptr) {
      TF_EXT_RETURN_IF_ERROR(
          CheckSplits(input, [&] { return DescribeInput(i); }));
    } else if (*batch == 0 ? input.n != 0 : input.n % *batch != 0) {
      return Invalid("The number of values of ", DescribeInput(i),
                     " must be a multiple of the batch size, but there are ",
                     input.n, " values and ", *batch, " bags.");
    }
  }
  if (*batch <= kMaxSignsPerCall / num_columns()) return Status::Ok();
  return Invalid("A batch of ", *batch, " in each of ", num_columns(),
                 " columns makes more than ", kMaxSignsPerCall,
                 " bags, the most that one call can make; use a smaller"
                 " batch.");
}

Status ColumnHasher::CountSigns(const std::vector<HashInput>& inputs,
                                int64_t batch, const ParallelFor& parallel_for,
                                int64_t* row_splits) const {
  // Columns whose bags differ; only their values have to be looked at.
  std::vector<int64_t> counts(columns_.size());
  std::vector<int64_t> uneven;
  for (int64_t c = 0; c < num_columns(); ++c) {
    counts[c] = columns_[c].CountOfEveryBag(inputs);
    if (counts[c] < 0) uneven.push_back(c);
  }
  const int64_t bags = static_cast<int64_t>(uneven.size()) * batch;
  parallel_for(Blocks(bags, kBagsPerBlock), [&](int64_t block) {
    const int64_t first = block * kBagsPerBlock;
    ForEachColumn(first, std::min(first + kBagsPerBlock, bags), batch,
                  [&](int64_t i, int64_t begin, int64_t end) {
                    const int64_t column = uneven[i];
                    columns_[column].CountSigns(
                        inputs, begin, end,
                        row_splits + 1 + column * batch + begin);
                  });
  });

  int64_t total = 0;
  row_splits[0] = 0;
  for (int64_t c = 0; c < num_columns(); ++c) {
    int64_t* const ends = row_splits + 1 + c * batch;
    if (counts[c] >= 0) {
      // Sums, not products: those would not become vector instructions.
      const int64_t count = counts[c];
      for (int64_t b = 0; b < batch; ++b) ends[b] = total += count;
    } else {
      for (int64_t b = 0; b < batch; ++b) ends[b] = total += ends[b];
    }
    if (total > kMaxSignsPerCall) {
      return Invalid("The batch makes more than ", kMaxSignsPerCall,
                     " signs, the most that one call can make, in ",
                     columns_[c].DescribeNamespace(),
                     " and those before it. Use a smaller batch, or shorter"
                     " bags in crosses.");
    }
  }
  return Status::Ok();
}

bool ColumnHasher::HaveOneSign(const std::vector<HashInput>& inputs) const {
  return std::all_of(columns_.begin(), columns_.end(),
                     [&](const Column& column) {
                       return column.CountOfEveryBag(inputs) == 1;
                     });
}

void ColumnHasher::HashRows(const std::vector<HashInput>& inputs, int64_t batch,
                            int64_t* signs) const {
  // So few that the rows stay in the cache until all columns are in them.
  constexpr int64_t kRows = 512;
  int64_t of_column[kRows];
  std::vector<std::vector<int64_t>> distinct;
  for (const Column& column : columns_) {
    distinct.push_back(column.HashDistinct(inputs));
  }
  for (int64_t begin = 0; begin < batch; begin += kRows) {
    const int64_t rows = std::min(kRows, batch - begin);
    for (int64_t c = 0; c < num_columns(); ++c) {
      if (distinct[c].empty()) {
        columns_[c].Hash(inputs, begin, begin + rows, of_column, nullptr);
      } else {
        const int32_t* const places =
            inputs[columns_[c].parts()[0].input].places + begin;
        for (int64_t i = 0; i < rows; ++i) {
          of_column[i] = distinct[c][places[i]];
        }
      }
      int64_t* out = signs + begin * num_columns() + c;
      for (int64_t i = 0; i < rows; ++i, out += num_columns()) {
        *out = of_column[i];
      }
    }
  }
}

bool ColumnHasher::HasWeights(const std::vector<HashInput>& inputs) const {
  for (const Column& column : columns_) {
    for (const PreparedPart& part : column.parts()) {
      if (inputs[part.input].weights != nullptr) return true;
    }
  }
  return false;
}

void ColumnHasher::Hash(const std::vector<HashInput>& inputs, int64_t batch,
                        const int64_t* row_splits,
                        const ParallelFor& parallel_for, int64_t* signs,
                        float* weights) const {
  const int64_t bags = num_columns() * batch;
  const int64_t blocks = Blocks(row_splits[bags], kSignsPerBlock);
  // Blocks of bags that make about the same number of signs.
  const auto first_bag = [&](int64_t block) {
    if (block == blocks) return bags;
    return std::lower_bound(row_splits, row_splits + bags,
                            block * kSignsPerBlock) -
           row_splits;
  };
  parallel_for(blocks, [&](int64_t block) {
    ForEachColumn(first_bag(block), first_bag(block + 1), batch,
                  [&](int64_t column, int64_t begin, int64_t end) {
                    const int64_t place = row_splits[column * batch + begin];
                    columns_[column].Hash(
                        inputs, begin, end, signs + place,
                        weights == nullptr ? nullptr : weights + place);
                  });
  });
}

}  // namespace tf_ext

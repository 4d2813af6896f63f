#include "exchange/host/messages.h"

#include <algorithm>
#include <cstring>

#include "core/group.h"

namespace group_embedding {
namespace {

constexpr int64_t kHeaderWords = 7;

int64_t WordsOf(int64_t bytes) { return (bytes + 7) / 8; }

int64_t WordsOfFloats(int64_t count) { return WordsOf(count * sizeof(float)); }

// Returns the line of `text` that begins at `at`, and moves `at` behind it.
std::string NextLine(const std::string& text, size_t* at) {
  const size_t begin = std::min(*at, text.size());
  const size_t end = std::min(text.find('\n', begin), text.size());
  *at = end + 1;
  return text.substr(begin, end - begin);
}

// Reads a message word by word. Reading past its end gives zeros and makes Ended false.
class Reader {
 public:
  Reader(const int64_t* words, int64_t size) : at_(words), left_(size) {}

  int64_t Next() { return left_ > 0 ? (--left_, *at_++) : (whole_ = false, 0); }

  std::string Text(int64_t bytes) {
    std::string text;
    if (!Has(bytes < 0 || bytes > 8 * left_ ? -1 : WordsOf(bytes))) return text;
    text.assign(reinterpret_cast<const char*>(at_), bytes);
    Skip(WordsOf(bytes));
    return text;
  }

  void Append(int64_t count, std::vector<int64_t>* to) {
    if (!Has(count)) return;
    to->insert(to->end(), at_, at_ + count);
    Skip(count);
  }

  // As Append, for numbers from 1 to `most`.
  void AppendUpTo(int64_t most, int64_t count, std::vector<int64_t>* to) {
    if (!Has(count)) return;
    whole_ = std::all_of(at_, at_ + count, [=](int64_t n) { return n >= 1 && n <= most; });
    Append(count, to);
  }

  // Copies `count` elements, padded to words.
  template <typename T>
  std::vector<T> Array(int64_t count) {
    std::vector<T> array;
    constexpr int64_t kInWord = sizeof(int64_t) / sizeof(T);
    if (!Has(count < 0 || count / kInWord > left_ ? -1 : (count + kInWord - 1) / kInWord)) {
      return array;
    }
    array.resize(count);
    if (count > 0) std::memcpy(array.data(), at_, count * sizeof(T));
    Skip((count + kInWord - 1) / kInWord);
    return array;
  }

  void Refuse() { whole_ = false; }

  // Whether all words were read, and none past the end.
  bool Ended() const { return whole_ && left_ == 0; }

 private:
  bool Has(int64_t count) { return whole_ = whole_ && count >= 0 && count <= left_; }
  void Skip(int64_t count) { at_ += count, left_ -= count; }

  const int64_t* at_;
  int64_t left_;
  bool whole_ = true;
};

bool HasSums(const Description& description, int64_t table) {
  return !description.sums.empty() && description.sums[table];
}

int64_t NumWords(const TableRequest& table, int64_t num_ranks) {
  int64_t words = table.ids.size() + table.times.size();
  if (!table.first_id.empty()) {
    words += 3 * num_ranks + table.sums.size() + WordsOfFloats(table.weights.size());
  }
  return words;
}

// The ids of the sums that one owner is asked for.
void AppendSums(const TableRequest& table, int64_t owner, std::vector<int64_t>* words) {
  const int64_t first = table.first_id[owner], num_ids = table.first_id[owner + 1] - first;
  const int64_t first_sum = table.first_row[owner];
  const int64_t num_sums = table.first_row[owner + 1] - first_sum;
  words->insert(words->end(), {num_ids, table.weights.empty() ? 0 : 1});
  const size_t sums_at = words->size();
  words->resize(sums_at + num_sums);
  if (num_sums > 0) {
    std::memcpy(words->data() + sums_at, table.sums.data() + first_sum, num_sums * sizeof(RowSum));
  }
  words->insert(words->end(), table.ids.begin() + first, table.ids.begin() + first + num_ids);
  if (table.weights.empty() || num_ids == 0) return;
  const size_t weights_at = words->size();
  words->resize(weights_at + WordsOfFloats(num_ids));
  std::memcpy(words->data() + weights_at, table.weights.data() + first, num_ids * sizeof(float));
}

// Reads what AppendSums wrote of so many sums.
void ReadSums(int64_t num_sums, int64_t table, Reader* message, Requests* requests) {
  const int64_t num_ids = message->Next(), weighted = message->Next();
  const std::vector<RowSum> sums = message->Array<RowSum>(num_sums);
  std::vector<int64_t> ids;
  message->Append(num_ids, &ids);
  const std::vector<float> weights = message->Array<float>(weighted == 0 ? 0 : num_ids);
  int64_t left = static_cast<int64_t>(ids.size());
  for (const RowSum& sum : sums) {
    if (sum.num_ids < 0 || sum.num_ids > left) return message->Refuse();
    left -= sum.num_ids;
  }
  const bool is_whole = left == 0 && (weighted == 0 || weights.size() == ids.size());
  if (!is_whole || weighted < 0 || weighted > 1) return message->Refuse();
  requests->ids[table].insert(requests->ids[table].end(), ids.begin(), ids.end());
  int64_t id = 0;
  for (const RowSum& sum : sums) {
    requests->sum_lengths[table].push_back(sum.num_ids);
    for (const int64_t end = id + sum.num_ids; id < end; ++id) {
      requests->factors[table].push_back(sum.scale * (weighted == 0 ? 1.0f : weights[id]));
    }
  }
}

}  // namespace

uint64_t DigestOf(const std::string& description) {  // FNV-1a
  uint64_t digest = 0xcbf29ce484222325ULL;
  for (const char c : description)
    digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return digest;
}

std::string DifferenceOf(const std::string& ours, const std::string& theirs, int64_t rank) {
  const std::string who = "rank " + std::to_string(rank);
  std::string said = "the ranks disagree: ";
  if (theirs.empty()) {
    said += who + " makes another one than this rank, whose is\n" + ours;
  } else {
    size_t our_at = 0, their_at = 0;
    std::string our_line, their_line;
    while (our_line == their_line && (our_at < ours.size() || their_at < theirs.size())) {
      our_line = NextLine(ours, &our_at);
      their_line = NextLine(theirs, &their_at);
    }
    said += who + " has " + (their_line.empty() ? "nothing more" : their_line) +
            " where this rank has " + (our_line.empty() ? "nothing more" : our_line);
  }
  return said + "; build the same model, in the same order, on all ranks";
}

Messages WriteMessages(const std::vector<TableRequest>& tables, const Fault& fault,
                       const Description& description, bool with_description, int64_t num_ranks,
                       int64_t fault_rank) {
  Messages messages;
  std::vector<int64_t>& words = messages.words;
  const int64_t description_bytes =
      with_description ? static_cast<int64_t>(description.text.size()) : 0;
  size_t size = num_ranks * (kHeaderWords + WordsOf(description_bytes) + tables.size());
  for (const TableRequest& table : tables) size += NumWords(table, num_ranks);
  words.reserve(size);
  for (int64_t owner = 0; owner < num_ranks; ++owner) {
    const size_t start = words.size();
    words.insert(words.end(),
                 {static_cast<int64_t>(fault.kind), fault.feature, fault.sample, fault.value,
                  fault_rank, static_cast<int64_t>(DigestOf(description.text)), description_bytes});
    words.resize(words.size() + WordsOf(description_bytes));
    std::memcpy(words.data() + start + kHeaderWords, description.text.data(), description_bytes);
    for (const TableRequest& table : tables) {
      messages.counts.push_back(table.first_row[owner + 1] - table.first_row[owner]);
      words.push_back(messages.counts.back());
    }
    auto append = [&](const std::vector<int64_t>& values, const TableRequest& table) {
      words.insert(words.end(), values.begin() + table.first_row[owner],
                   values.begin() + table.first_row[owner + 1]);
    };
    for (const TableRequest& table : tables) {
      if (table.first_id.empty()) {
        append(table.ids, table);
      } else {
        AppendSums(table, owner, &words);
      }
    }
    for (const TableRequest& table : tables) {
      if (!table.times.empty()) append(table.times, table);
    }
    messages.splits.push_back(static_cast<int64_t>(words.size() - start));
  }
  return messages;
}

Requests ReadMessages(const int64_t* words, const int64_t* splits, int64_t num_ranks,
                      const Description& description, const std::vector<int64_t>& numbers) {
  const int64_t num_tables = static_cast<int64_t>(description.keyed.size());
  Requests requests;
  requests.ids.resize(num_tables);
  requests.times.resize(num_tables);
  requests.sum_lengths.resize(num_tables);
  requests.factors.resize(num_tables);
  for (int64_t n = 0; n < num_ranks; words += splits[n++]) {
    Reader message(words, splits[n]);
    const int64_t number = numbers.empty() ? n : numbers[n];
    const int64_t kind = message.Next(), feature = message.Next();
    const int64_t sample = message.Next(), value = message.Next();
    const int64_t said_rank = message.Next(), fault_rank = said_rank < 0 ? number : said_rank;
    const uint64_t digest = static_cast<uint64_t>(message.Next());
    const std::string text = message.Text(message.Next());
    if (digest != DigestOf(description.text)) {
      requests.error = DifferenceOf(description.text, text, number);
      return requests;
    }
    if (kind != 0 && (requests.fault_rank < 0 || fault_rank < requests.fault_rank)) {
      requests.fault_rank = fault_rank;
      requests.fault = {static_cast<FaultKind>(kind), static_cast<int32_t>(feature), sample, value};
    }
    for (int64_t t = 0; t < num_tables; ++t) requests.counts.push_back(message.Next());
    const int64_t* counts = requests.counts.data() + n * num_tables;
    for (int64_t t = 0; t < num_tables; ++t) {
      if (HasSums(description, t)) {
        ReadSums(counts[t], t, &message, &requests);
      } else {
        message.Append(counts[t], &requests.ids[t]);
      }
    }
    for (int64_t t = 0; t < num_tables; ++t) {
      if (!description.keyed[t] || HasSums(description, t)) continue;
      message.AppendUpTo(kMaxTimes, counts[t], &requests.times[t]);
    }
    if (!message.Ended() || !IsFaultKind(kind)) {
      requests.error = "rank " + std::to_string(number) + " sent what is no message of this lookup";
      return requests;
    }
  }
  return requests;
}

}  // namespace group_embedding

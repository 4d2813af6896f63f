#include "serving/lower/lower_rows.h"

namespace group_embedding {

std::shared_ptr<LowerTier> OpenLowerTier(const TierOptions& options, Status* error) {
  if (!options.redis.empty()) return OpenRedisTier(options.redis, error);
  return OpenRocksdbTier(options.rocksdb, error);
}

}  // namespace group_embedding

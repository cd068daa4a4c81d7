// SPDX-License-Identifier: Apache-2.0
// Reports on the products of a configuration, for `stoch inspect --product`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/sc_model_config.h"
#include "research/products/product_report.h"

namespace stoch::cli {

// Operators whose counts are one table, whatever their scopes.
struct DistinctProduct {
  std::vector<std::string> operators;  // "q_proj", and "3.q_proj" of a layer with settings of its own
  std::string config;                  // of one product, as Describe
  ScOperatorPtr op;
};

// Of operators that run and multiply streams or counts; `only` names one, "": all.
// Errors: InvalidInput for a name that is none.
std::vector<DistinctProduct> DistinctProducts(const ScModelConfig& sc, std::string_view only);

// Errors: InvalidInput naming the option where there are several.
const ScOperator& OnlyProduct(const std::vector<DistinctProduct>& products, const char* option);

std::string ProductsText(const std::vector<DistinctProduct>& products);
std::string ProductsJson(const std::vector<DistinctProduct>& products);
nlohmann::ordered_json ReportJson(const ScOperator& op);

// mask,a,b,count,ideal of all pairs of levels that quantizers make.
std::string ProductCsv(const ScOperator& op);
// int16 [masks, levels, levels] (.npy), as gate=counts takes them. Errors: InvalidInput where they do not fit.
std::string ProductCounts(const ScOperator& op);

}  // namespace stoch::cli

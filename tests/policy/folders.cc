// SPDX-License-Identifier: Apache-2.0
// The rules about folders: they see the tree as a whole.

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

constexpr size_t kMaxFiles = 30;
constexpr size_t kMaxSamePrefix = 9;

// A folder, or a file that stands apart from its own.
std::string NodeOf(const std::string& path) {
  if (path == "kernels/registry.cc") return path;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
}

// Who includes whom, with one include that shows it.
using Graph = std::map<std::string, std::map<std::string, std::string>>;

Graph FolderGraph(const std::vector<SourceFile>& files) {
  Graph graph;
  for (const SourceFile& file : files) {
    if (!IsSource(file.path)) continue;
    const std::string from = NodeOf(file.path);
    for (const std::string& name : QuotedIncludes(file)) {
      const std::string to = NodeOf(name);
      if (to != from) graph[from].emplace(to, file.path + " includes " + name);
    }
  }
  return graph;
}

// The shortest way from a folder back to itself, its ends included; empty if there is none.
std::vector<std::string> ShortestCycle(const Graph& graph, const std::string& start) {
  std::map<std::string, std::string> reached_from;
  std::deque<std::string> next = {start};
  while (!next.empty()) {
    const std::string node = next.front();
    next.pop_front();
    const auto edges = graph.find(node);
    if (edges == graph.end()) continue;
    for (const auto& [to, example] : edges->second) {
      if (!reached_from.emplace(to, node).second) continue;
      next.push_back(to);
      if (to != start) continue;
      std::vector<std::string> cycle = {start};
      do cycle.push_back(reached_from.at(cycle.back()));
      while (cycle.back() != start);
      std::reverse(cycle.begin(), cycle.end());
      return cycle;
    }
  }
  return {};
}

// The sources of every folder.
std::map<std::string, std::vector<std::string>> Sources(const std::vector<SourceFile>& files) {
  std::map<std::string, std::vector<std::string>> folders;
  for (const SourceFile& file : files) {
    const size_t slash = file.path.rfind('/');
    if (!IsSource(file.path) || slash == std::string::npos) continue;
    folders[file.path.substr(0, slash)].push_back(file.path.substr(slash + 1));
  }
  return folders;
}

}  // namespace

std::vector<std::string> CheckFolderCycles(const std::vector<SourceFile>& files) {
  const Graph graph = FolderGraph(files);
  std::vector<std::string> shortest;
  for (const auto& [node, edges] : graph) {
    std::vector<std::string> cycle = ShortestCycle(graph, node);
    if (!cycle.empty() && (shortest.empty() || cycle.size() < shortest.size())) shortest = std::move(cycle);
  }
  if (shortest.empty()) return {};
  std::string found = shortest.front() + ":0: folders form a cycle:";
  for (size_t i = 0; i + 1 < shortest.size(); ++i) {
    found += "\n  " + shortest[i] + " -> " + shortest[i + 1] + " (" + graph.at(shortest[i]).at(shortest[i + 1]) + ")";
  }
  return {found};
}

std::vector<std::string> CheckFolderSizes(const std::vector<SourceFile>& files) {
  std::map<std::string, size_t> sizes;
  for (const SourceFile& file : files) {
    const size_t slash = file.path.rfind('/');
    ++sizes[slash == std::string::npos ? "." : file.path.substr(0, slash)];
  }
  std::vector<std::string> found;
  for (const auto& [folder, size] : sizes) {
    if (size <= kMaxFiles || folder == "kernels/cpu") continue;
    found.push_back(folder + ":0: has " + std::to_string(size) + " files, more than " + std::to_string(kMaxFiles));
  }
  return found;
}

std::vector<std::string> CheckPrefixes(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const auto& [folder, names] : Sources(files)) {
    std::map<std::string, std::set<std::string>> by_word;
    for (const std::string& name : names) {
      const std::string stem = name.substr(0, name.find('.'));
      by_word[stem.substr(0, stem.find('_'))].insert(stem);
    }
    for (const auto& [word, stems] : by_word) {
      if (stems.size() <= kMaxSamePrefix) continue;
      found.push_back(folder + ":0: " + std::to_string(stems.size()) + " names begin with " + word +
                      ", which should be a folder");
    }
  }
  return found;
}

std::vector<std::string> CheckReadmes(const std::vector<SourceFile>& files) {
  std::set<std::string> paths;
  std::set<std::string> folders;
  for (const SourceFile& file : files) {
    paths.insert(file.path);
    const size_t slash = file.path.rfind('/');
    const bool hidden = file.path.front() == '.';
    const bool is_data = file.path.starts_with("bench/results/") || file.path.starts_with("tests/fuzz/seeds/");
    if (slash != std::string::npos && !hidden && !is_data) folders.insert(file.path.substr(0, slash));
  }
  std::vector<std::string> found;
  for (const std::string& folder : folders) {
    if (paths.count(folder + "/README.md") == 0) found.push_back(folder + ":0: has no README.md");
  }
  // A formatter of code that is given Markdown leaves "#engine / serve".
  for (const SourceFile& file : files) {
    const bool markdown = file.path.size() > 3 && file.path.compare(file.path.size() - 3, 3, ".md") == 0;
    if (markdown && file.text.rfind("# ", 0) != 0) found.push_back(file.path + ":1: does not begin with a heading");
  }
  return found;
}

}  // namespace stoch::test

// The rules about folders: they see the tree as a whole.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

constexpr size_t kMaxSources = 30;
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

// Depth first; `path` is how the search came to its last node.
void FindCycles(const Graph& graph, std::vector<std::string>& path, std::set<std::string>& done,
                std::vector<std::string>& found) {
  const std::string node = path.back();
  if (const auto edges = graph.find(node); edges != graph.end()) {
    for (const auto& [next, example] : edges->second) {
      const auto open = std::find(path.begin(), path.end(), next);
      if (open != path.end()) {
        std::string cycle = node + ":0: folders form a cycle: ";
        for (auto step = open; step != path.end(); ++step) {
          const std::string& to = std::next(step) == path.end() ? next : *std::next(step);
          cycle += *step + " -> " + to + " (" + graph.at(*step).at(to) + ") ";
        }
        found.push_back(cycle);
      } else if (done.count(next) == 0) {
        path.push_back(next);
        FindCycles(graph, path, done, found);
        path.pop_back();
      }
    }
  }
  done.insert(node);
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
  std::vector<std::string> found;
  std::set<std::string> done;
  for (const auto& [node, edges] : graph) {
    std::vector<std::string> path = {node};
    if (done.count(node) == 0) FindCycles(graph, path, done, found);
  }
  return found;
}

std::vector<std::string> CheckFolderSizes(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const auto& [folder, names] : Sources(files)) {
    if (names.size() <= kMaxSources || folder == "kernels/cpu") continue;
    found.push_back(folder + ":0: has " + std::to_string(names.size()) + " sources, more than " +
                    std::to_string(kMaxSources));
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
  std::set<std::string> readmes;
  for (const SourceFile& file : files) readmes.insert(file.path);
  std::vector<std::string> found;
  for (const auto& [folder, names] : Sources(files)) {
    if (readmes.count(folder + "/README.md") == 0) found.push_back(folder + ":0: has no README.md");
  }
  return found;
}

}  // namespace stoch::test

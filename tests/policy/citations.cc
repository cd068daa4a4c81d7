// SPDX-License-Identifier: Apache-2.0
// Every document that a file cites exists, and every source that a comment names.

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

bool EndsWith(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// The anchor that a Markdown heading gets: lower case, punctuation dropped, blanks as '-'.
std::string Anchor(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0 || c == '-' || c == '_' || u >= 0x80) anchor += static_cast<char>(std::tolower(u));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

std::set<std::string> Anchors(const std::string& markdown) {
  std::set<std::string> anchors;
  std::istringstream stream(markdown);
  bool code = false;
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("```", 0) == 0) code = !code;
    const size_t level = line.find_first_not_of('#');
    if (code || level == 0 || level == std::string::npos || line[level] != ' ') continue;
    anchors.insert(Anchor(line.substr(level + 1)));
  }
  return anchors;
}

class Tree {
 public:
  Tree(const std::vector<SourceFile>& files, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      known_.insert(path);
      if (IsSource(path)) sources_.push_back("/" + path);
      for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
        known_.insert(path.substr(0, at));
      }
    }
    for (const SourceFile& file : files) {
      if (EndsWith(file.path, ".md")) anchors_[file.path] = Anchors(file.text);
    }
  }

  // Whether a source's path ends with `name`, in which '*' stands for anything.
  bool HasSource(const std::string& name) const {
    return std::any_of(sources_.begin(), sources_.end(), [pattern = "*/" + name](const std::string& path) {
      return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
    });
  }

  bool HasDocument(const std::string& name) const { return name != "README.md" && known_.count("docs/" + name) != 0; }

  // What is wrong with a citation of `path`, a file or folder, and of `anchor` in it; "" if nothing.
  std::string Problem(std::string path, const std::string& anchor) const {
    if (!path.empty() && path.back() == '/') path.pop_back();
    if (!path.empty() && known_.count(path) == 0) return path + " is not there";
    const auto document = anchors_.find(path);
    if (anchor.empty() || document == anchors_.end() || document->second.count(anchor) != 0) return "";
    return path + " has no heading #" + anchor;
  }

 private:
  std::set<std::string> known_;
  std::vector<std::string> sources_;  // with '/' in front
  std::map<std::string, std::set<std::string>> anchors_;
};

// Every match of `pattern` in `line`: group 1 is a path below one of `folders`, group 2 (if there) what follows '#'.
void Check(const Tree& tree, const std::regex& pattern, const std::vector<std::string>& folders,
           const std::string& line, const std::string& where, std::vector<std::string>* found) {
  for (auto it = std::sregex_iterator(line.begin(), line.end(), pattern); it != std::sregex_iterator(); ++it) {
    const std::string path = (*it)[1].str();
    const std::string anchor = it->size() > 2 ? (*it)[2].str() : std::string();
    if (path.find("://") != std::string::npos || path.rfind("mailto:", 0) == 0) continue;
    std::string problem;
    for (const std::string& folder : folders) {
      problem = tree.Problem((std::filesystem::path(folder) / path).lexically_normal().generic_string(), anchor);
      if (problem.empty()) break;
    }
    if (!problem.empty()) found->push_back(where + ": " + problem);
  }
}

// Sources that a comment names: any .cc, .cu and .cuh, and headers with their folder.
void CheckNamedSources(const Tree& tree, const std::string& line, const std::string& where,
                       std::vector<std::string>* found) {
  static const std::regex source(
      R"((?:^|[^\w./*-])((?:[\w*]+/)*[\w*]+\.(?:cc|cuh?)|(?:bench|engine|kernels|loader|models|tests|tools)/[\w/*]+\.h)\b)");
  const size_t begin = line.find("//");
  if (begin == std::string::npos) return;
  const auto has = [&](const char* ending) { return line.find(ending, begin) != std::string::npos; };
  if (!has(".cc") && !has(".cu") && !has(".h")) return;
  for (auto it = std::sregex_iterator(line.begin() + static_cast<int64_t>(begin), line.end(), source);
       it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[1].str();
    if (!tree.HasSource(name)) found->push_back(where + ": " + name + " is not there");
  }
}

// Documents that a comment names without their folder: nobody checks those, nor finds them.
void CheckFullNames(const Tree& tree, const std::string& line, const std::string& where,
                    std::vector<std::string>* found) {
  static const std::regex bare(R"((?:^|[^\w./-])([\w-]+?)(?:\.md\b| section \d))");
  const size_t begin = line.find("//");
  if (begin == std::string::npos) return;
  if (line.find(".md", begin) == std::string::npos && line.find(" section ", begin) == std::string::npos) return;
  for (auto it = std::sregex_iterator(line.begin() + static_cast<int64_t>(begin), line.end(), bare);
       it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[1].str() + ".md";
    if (tree.HasDocument(name)) found->push_back(where + ": cites docs/" + name + " by half of its name");
  }
}

}  // namespace

std::vector<std::string> CheckCitations(const std::vector<SourceFile>& files, const std::vector<std::string>& paths) {
  static const std::regex document(R"((?:^|[^\w./-])(docs/[\w./-]+\.md)(?:#([\w-]+))?)");
  static const std::regex link(R"(\]\(([^)#\s]*)(?:#([^)\s]+))?\))");
  static const std::regex named(
      R"(`((?:bench|demo|docs|engine|examples|kernels|loader|models|tests|tools|\.ci|\.github)/[\w./-]*)`)");
  // Of a source by its name alone, as READMEs have it; capitals stand for a name.
  static const std::regex short_name(R"(`([a-z0-9_*]+\.(?:\*|cc|cuh?|h))`)");
  const Tree tree(files, paths);
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    if (file.path.rfind("tests/policy/", 0) == 0) continue;  // has wrong citations on purpose
    const bool markdown = EndsWith(file.path, ".md");
    const std::string folder = std::filesystem::path(file.path).parent_path().generic_string();
    std::istringstream stream(file.text);
    size_t number = 0;
    for (std::string line; std::getline(stream, line);) {
      const std::string where = file.path + ":" + std::to_string(++number);
      if (line.find("shared/spec") != std::string::npos) found.push_back(where + ": shared/spec is not in this tree");
      if (!markdown) {
        if (line.find("docs/") != std::string::npos) Check(tree, document, {""}, line, where, &found);
        if (IsSource(file.path)) CheckNamedSources(tree, line, where, &found);
        if (IsSource(file.path)) CheckFullNames(tree, line, where, &found);
        continue;
      }
      if (line.find_first_of("](`") == std::string::npos) continue;
      // A link to its own headings has no path.
      std::string own = line;
      const std::string name = std::filesystem::path(file.path).filename().generic_string();
      for (size_t at = own.find("](#"); at != std::string::npos; at = own.find("](#", at + 1)) own.insert(at + 2, name);
      Check(tree, link, {folder}, own, where, &found);
      if (file.path.rfind("bench/", 0) != 0) Check(tree, named, {"", folder}, line, where, &found);
      for (auto it = std::sregex_iterator(line.begin(), line.end(), short_name); it != std::sregex_iterator(); ++it) {
        const std::string source = (*it)[1].str();
        if (!tree.HasSource(source)) found.push_back(where + ": " + source + " is not there");
      }
    }
  }
  return found;
}

}  // namespace stoch::test

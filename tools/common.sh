# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the scripts of this folder: messages, the build, what changed. Sourced, not run.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

note() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  note "error: $*"
  exit 1
}

# install_once [OPTIONS]: tools/install, which returns at once where nothing is missing.
install_once() { "$root/tools/install" "$@" || exit 1; }

# say_progress LOG: ninja's last "[done/all]" in LOG once a minute (STOCH_PROGRESS_SECONDS), until it is
# killed.
say_progress() {
  local line
  while true; do
    # Waits without a process of its own, which would outlive this one and keep standard error open.
    read -rt "${STOCH_PROGRESS_SECONDS:-60}" <> <(:) || true
    line=$(grep -o '^\[[0-9]*/[0-9]*\]' "$1" | tail -n 1) || true
    note "building ${line:-...}"
  done
}

# The commit that sources are compared with: STOCH_LINT_BASE, or where HEAD left the default branch. Nothing if there is
# none, as in a shallow clone.
merge_base() {
  local branch base
  [ -z "${STOCH_LINT_BASE:-}" ] || { git rev-parse --verify --quiet "$STOCH_LINT_BASE^{commit}"; return; }
  for branch in "$(git symbolic-ref --quiet refs/remotes/origin/HEAD || true)" origin/main main; do
    [ -n "$branch" ] || continue
    base=$(git merge-base HEAD "$branch" 2>/dev/null) || continue
    # At the tip of the default branch: what its last commit changed.
    [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse --verify --quiet HEAD~1) || return 0
    echo "$base"
    return
  done
}

# changed_sources: the .cc files that changed since then, a line each; fails if there is nothing to compare with. A
# header stands for the source of the same name, which is what most of them have.
changed_sources() {
  local base file
  base=$(merge_base) && [ -n "$base" ] || return 1
  while IFS= read -r file; do
    [[ "$file" != *.h ]] || file="${file%.h}.cc"
    if [[ "$file" == *.cc && -f "$file" ]]; then echo "$file"; fi
  done < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u) | sort -u
}

# Two build folders of one tree, or two trees, compile the same sources: paths relative to the tree let ccache see that.
# Asked before every build, as the first one may have installed ccache.
share_ccache() {
  if [ -z "${CCACHE_BASEDIR:-}" ] && command -v ccache >/dev/null && [ -z "$(ccache --get-config base_dir)" ]; then
    export CCACHE_BASEDIR="$root"
  fi
}

# warnings: ON where warnings are errors: in continuous integration and under STOCH_WERROR=1. Elsewhere a compiler that is newer
# than the tree must not keep anybody from building it.
warnings() {
  if [ "${CI:-}" = true ] || [ "${STOCH_WERROR:-}" = 1 ]; then echo ON; else echo OFF; fi
}

# preset_args PRESET: what the surroundings say to CMake, an argument a line. STOCH_CUDA (ON: every architecture; OFF) and
# STOCH_CUDA_ARCHITECTURES are for `release`; other presets say what they build. What a build folder was told once it keeps.
preset_args() {
  local name
  case "$1" in
    release) ;;
    cuda) unset STOCH_CUDA STOCH_CUDA_ARCHITECTURES ;;
    *) return 0 ;;
  esac
  [ "$(warnings)" = OFF ] || echo -DSTOCH_WERROR=ON
  for name in STOCH_CUDA STOCH_CUDA_ARCHITECTURES; do
    [ -z "${!name:-}" ] || echo "-D$name=${!name}"
  done
}

# build PRESET TARGETS [CMAKE_ARGS...]: configures where that was not done with these tools and arguments, then builds.
# On a terminal ninja's own line; elsewhere a line a minute, and the output of what failed. All of it goes to stderr.
build() {
  local preset="$1" targets dir="$root/build/$1" log facts ticker status=0 args
  share_ccache
  read -ra targets <<<"$2"
  shift 2
  log="$dir/configure.log"
  mapfile -t args < <(preset_args "$preset")
  set -- ${args[@]+"${args[@]}"} "$@"
  # A compiler that was upgraded, or an nvcc or a GPU that appeared, must be looked at again.
  facts="$* | ${CXX:-c++} $("${CXX:-c++}" -dumpfullversion 2>&1) | ${CUDA_HOME:-} $(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc || true)"
  facts+=" | $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr '\n' ' ' || true)"
  if [ ! -f "$dir/build.ninja" ] || [ "$facts" != "$(cat "$dir/configured_with" 2>/dev/null)" ]; then
    note "configuring build/$preset (log: ${log#"$root"/})"
    mkdir -p "$dir"
    if ! (cd "$root" && cmake --preset "$preset" "$@") >"$log" 2>&1; then
      rm -f "$dir/configured_with"
      tail -n 40 "$log" >&2
      die "configuring failed"
    fi
    printf '%s\n' "$facts" >"$dir/configured_with"
    sed -n 's/^-- \(CUDA backend: off: .*\)/\1/p' "$log" | while read -r line; do note "$line"; done
    note "building (the first time takes minutes)"
  fi
  if [ -t 2 ]; then
    NINJA_STATUS='[%f/%t] ' ninja -C "$dir" "${targets[@]}" >&2 || die "building failed"
    return
  fi
  log="$dir/build.log"
  : >"$log"
  say_progress "$log" &
  ticker=$!
  NINJA_STATUS='[%f/%t] ' ninja -C "$dir" "${targets[@]}" >"$log" 2>&1 || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if [ "$status" = 0 ]; then
    ! grep -q ' warning[: ]' "$log" || note "the compiler warns (${log#"$root"/}); continuous integration takes that for an error"
    return
  fi
  grep -v '^\[[0-9]*/[0-9]*\] ' "$log" | tail -n 200 >&2 || true
  die "building failed (all of its output: ${log#"$root"/})"
}
